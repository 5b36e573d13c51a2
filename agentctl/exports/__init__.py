"""What a home knows in the forms that other tools read: files, traces, telemetry, Git.

Everything is made from the log, as often as one likes. `folder.py` is how files are written; the other
modules are a form each. Open `folder.py` first.
"""
