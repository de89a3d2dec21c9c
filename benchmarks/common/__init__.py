"""What the benchmarks share: the suite and its options, rows, tables, timing by turns, worker processes."""
