"""What the package costs and gains, measured: ``python -m benchmarks`` lists the benchmarks."""
