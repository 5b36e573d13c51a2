"""The search: decides what a run does next.

It holds the pure function `decide(state) -> [Record | Effect]`, beam selection, optimisation memory, stop
rules, and the roles that propose kernels. Nothing here runs a kernel, touches the log or knows the process:
`daemon` connects this room to `remote` and `state`. Open `decide.py` first, then `effects.py` and `roles/`.
"""
