"""The two sides of `benchmarks/durable.py`, the processes that they run in, and the journal they leave."""
