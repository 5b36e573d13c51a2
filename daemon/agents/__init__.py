"""Coding agents as proposers: a process for each plan, in its own folder, with tools for this plan alone.

`proposer.py` runs one; open it first. `slot_tools.py` carries out its tool calls, each in the log, and serves
them on a socket in its folder. `scratch.py` writes the folder, and builds the command line and its jail.
"""

SOCKET = "tools.sock"
"""The socket in a plan's folder on which the owner of the home serves its tools."""
SLOT_FILE = "slot.json"
"""Where `agentctl mcp --slot` finds the token of the plan."""
MAX_LINE_BYTES = 1 << 21
"""The longest call on the socket: more than any kernel needs."""
