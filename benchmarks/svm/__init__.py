"""Kernel and linear SVMs."""
