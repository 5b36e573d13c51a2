"""The agent's process: it owns the log, takes commands from the inbox, and performs the effects that
`decide` requests.

This package holds the supervisor, the effect runner, the command handlers and `agentd`. It is the only
one that connects `agent_core` to `remote`. It makes no search decisions (`agent_core` does) and judges
no kernels (`remote` does). Open `supervisor.py` first, then `runner.py` and `commands.py`.
"""
