"""One folder for each kind of target: all that knows a language or a chip lives here, behind one protocol.

`base.py` says what a target is and what it owes the rest of the program; `registry.py` finds one by its name
and imports its folder only then. No other room names a target: it asks the registry. A target's folder uses
the helpers that `agent_core` and `remote` publish. Open `base.py` first, then `nki/target.py`.
"""
