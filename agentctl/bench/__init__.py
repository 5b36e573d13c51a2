"""Benchmarks that the product runs on itself: strategies of the search over problems and seeds.

Here live the runs (`run_lookup.py`), how they are kept and added up (`results.py`), how strategies compare
(`arms.py`) and what is printed (`tables.py`). What does not live here: options and exit statuses, which are
`agentctl/verbs/bench.py`'s. Open `run_lookup.py` first.
"""
