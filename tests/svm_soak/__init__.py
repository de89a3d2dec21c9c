"""Small hard problems for the SVMs, drawn at random, and what must hold of every answer."""
