"""Kills and faults: the daemon and its log under everything that may happen to them.

`scenarios.py` is the table, `runner.py` the command: `python -m benchmarks.faults --help`.
"""
