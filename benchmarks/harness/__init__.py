"""What all benchmarks share: processes that take turns, memory and time of a step, tables."""
