"""What `benchmarks/llm_faults.py` consists of: lives of a daemon that buys answers, and what they came to."""
