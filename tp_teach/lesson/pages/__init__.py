"""Notebooks as slides and as pages, from their stored outputs: each file carries all it shows, and loads nothing."""
