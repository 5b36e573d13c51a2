"""What runs came to in numbers: how often kernels were right, how much faster they were, what that cost.

Here live the facts, read from the log (`facts.py`), and the arithmetic on them (`figures.py`), which is pure.
What does not live here: options and tables, which are `agentctl/verbs/stats.py`'s. Open `figures.py` first.
"""
