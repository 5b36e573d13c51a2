"""What keeps a long run sane. Here live the divergence guard with its checkpoints, reflexion notes and
their mechanical grades, the attempt history with its credits, budgets, and the breakers of endpoints.
Everything is a pure function of values that the run's state or the process holds; nothing here proposes,
decides what to do next, runs a kernel or touches the log. Open `divergence_guard.py` first, then
`reflexion.py` and `attempt_history.py`.
"""
