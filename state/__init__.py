"""The event log and its vocabulary: the events of a run, the state that follows from them, and their storage.

`model` holds the value types, `events` the events. `fold` and `system` turn events into state. `log` writes
the event log, `reader` reads it, and `verify` checks it.

This room knows nothing of kernels, LLMs or machines, and imports no other room. Open `log.py` first, then
`events`.
"""
