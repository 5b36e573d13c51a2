"""What runs on a host: a worker that keeps jobs alive, orderly and apart, whatever becomes of the link to it.

It is shipped as one archive and started by the host's own Python, of version 3.9 or later, with nothing
installed: modules here import the standard library and each other. `serve` answers one connection and dies
with it; each job has a runner of its own, detached, which dies when the job is over. What they share is
files: see `workdir.py` for which. Open `runner.py` first.
"""
