"""Evaluates a traced program as a formula over value domains, next to the reference's expression.

The domains, the reference's side and the verdict are in `remote.judge.identity`. Open `stage.py` first.
"""
