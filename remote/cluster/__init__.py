"""Evaluates kernels in the simulator on a Ray cluster, for when one machine is not enough.

`evaluator.py` is the evaluator at home. `judge.py` runs on the cluster: the embedded evaluator with the same
jail. Ray places, starts and restarts it; nothing here schedules. Ray is an optional extra, so it is imported
only where it is used. Open `evaluator.py` first.
"""
