"""The two sides of `benchmarks.vs_dbos`, the processes that they run in, and the journal they leave."""
