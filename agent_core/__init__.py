"""What to do next. Here live `decide(state) -> [Record | Effect]` (pure), beam selection, optimisation
memory, stop rules, the roles that propose, and the built-in rewrite engine. Nothing here runs a kernel,
touches the log or knows the process: `daemon` introduces this room to `remote` and `state`. Open
`decide.py` first, then `effects.py` and `roles/`.
"""
