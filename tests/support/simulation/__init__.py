"""A simulated world around the real daemon: one seed decides everything, and no time passes.

`running.simulate` is where to begin. What is real: host, supervisor, runner, commands, inbox, `decide`, fold
and the event log on SQLite. What is simulated: time (`clock`), who answers (`workers`), when the log's writer
commits and what the disk and the machine do meanwhile (`fates`), and people (`scenario`). `invariants` looks
at every event that is stored.
"""
