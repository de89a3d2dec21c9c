"""Benchmarks: what is fast and what is not, beside the peer in the same run; see README.md."""
