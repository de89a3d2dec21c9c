"""Compiled kernels: losses, penalties, schedules, SGD over rows, packing, sorting and random numbers."""

__all__: list[str] = []
