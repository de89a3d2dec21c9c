"""Fits that are hurt."""
