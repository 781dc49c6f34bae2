"""How a model is cut over the ranks of a mesh."""
