"""A Model Context Protocol server of one home: tools, resources and prompts, on stdio or on loopback HTTP.

The tools that work on a kernel are those of sessions (`agent_core/tools`): `benches.py` gives them a place to
work in, `kernel_tools.py` offers them. `run_views.py` reads the log, `run_commands.py` puts commands into
the inbox. `server.py` joins all to the protocol; open it first.
"""
