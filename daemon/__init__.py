"""The process: it owns the log, takes commands from the inbox, and runs what `decide` asks for.

Here live the supervisor, the effect runner, the commands, `agentd` and `agentctl`; this room alone
introduces `agent_core` and `remote` to each other. What to do next is decided in `agent_core`, how a
kernel is judged in `remote`, and nothing here knows either. Open `supervisor.py` first, then
`runner.py` and `commands.py`.
"""
