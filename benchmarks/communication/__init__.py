"""Wires, rounds, all-reduces and compressors."""
