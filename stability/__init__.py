"""Keeps long runs stable: divergence guard, reflexion notes, attempt history, budgets, and circuit breakers.

Everything is a pure function of values that the run's state or the process holds. Nothing here proposes
kernels, decides what to do next, runs a kernel or touches the log. Open `divergence_guard.py` first, then
`reflexion.py` and `attempt_history.py`.
"""
