"""Simulator evaluations on a Ray cluster: an existing engine for when one machine is not enough.

`evaluator.py` is the evaluator at home, `judge.py` what runs on the cluster: the embedded evaluator, with the
same jail. Ray places, starts and restarts it; nothing here schedules. Ray is imported where it is used: it is
an optional extra.
"""
