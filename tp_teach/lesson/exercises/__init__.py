"""One module a notebook, with its `EXERCISES` by name.

Each exercise is a function from an answer to a hint, to None when it is right, or to `Solved` with the answer's cost.
"""
