"""The vocabulary and the memory: what can happen, what has happened, and what follows from it.

Here live the value types (`model`), the events (`events`), the folds that turn events into state
(`fold`, `system`), and the event log that stores them: `log` writes, `reader` reads, `verify` proves.
Nothing here knows kernels, models or machines, and nothing here may import another room. Read `events`
first, then `log`.
"""
