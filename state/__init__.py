"""The vocabulary and the memory: value types, events, the event log, blobs, folds, read models. It
imports no other room, never decides what to do next and never runs anything. Open `model.py` first, then
`events.py`, `fold.py` and `log.py`.
"""
