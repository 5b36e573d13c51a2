"""Statistics of runs: how often kernels were right, how much faster they were, and what that cost.

This package holds the facts, read from the log (`facts.py`), and the pure arithmetic on them
(`figures.py`). Options and tables are in `agentctl/verbs/stats.py`. Open `figures.py` first.
"""
