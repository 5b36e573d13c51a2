"""The parts of the soak (`benchmarks/soak.py`): the week, its gauges, what counts as flat, the picture."""
