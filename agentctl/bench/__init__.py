"""Benchmarks that the program runs on itself: compares search strategies over problems and seeds.

This package holds the runs (`runs.py`), their results (`results.py`), the comparison of strategies
(`arms.py`), what runs learn from each other (`lessons.py`), and the printed tables (`tables.py`).
Options and exit statuses are in `agentctl/verbs/bench.py`. Open `runs.py` first.
"""
