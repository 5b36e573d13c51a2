"""A simulated world around the real daemon: one seed decides everything, and no time passes.

`running.simulate` is where to begin. What is real: host, supervisor, runner, commands, inbox, `decide`, fold
and the event log on SQLite. What a seed says of its world is in `scenario`. What is simulated: time
(`clock`), who answers (`workers`), when the log's writer commits and when things fail (`fates`), disk and
wall clock (`machine`), and `people`. `invariants` looks at every event of a run, `watch` at the whole log;
`twin` says how a run ends that nothing disturbs.
"""
