"""One folder per family of targets, with all that knows its language or chip, behind one protocol.

`base.py` defines a target and what it must provide. `registry.py` finds one by name and imports its folder
only then. No other room names a target: it asks the registry. A target's folder uses the helpers that
`agent_core` and `remote` publish. Open `base.py` first, then `nki/target.py`.
"""
