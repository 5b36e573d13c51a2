"""A traced program as a formula: evaluated over other numbers than floats, beside the reference's expression.

The numbers, the reference's side and the verdict are in `remote.judge.identity`. Open `stage.py` first.
"""
