"""Exports a home's data in formats that other tools read: files, traces, telemetry, Git.

Every export is made from the log and can be repeated. `folder.py` writes files safely; each other module
is one format. Open `folder.py` first.
"""
