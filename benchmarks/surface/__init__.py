"""What `benchmarks/knobs.py` is made of: workloads, all programs of small ones, results in words."""
