"""What vendors' profilers print, read into the counters that proposers and people are shown.

Open `summary.py`: the summaries of neuron-profile and neuron-explorer. A profiler of another vendor is a
module of its own here that gives a `Summary`.
"""
