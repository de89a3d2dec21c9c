"""Slow plain-numpy twins of the algorithms, fed the same stream as the real ones."""
