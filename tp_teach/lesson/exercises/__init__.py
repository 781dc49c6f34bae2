"""One module a notebook; each exercise is a function from an answer to a hint, or to None when it is right."""
