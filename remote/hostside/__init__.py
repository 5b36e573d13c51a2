"""The worker that runs on a host: it keeps jobs alive, ordered and separate when the connection fails.

It is shipped as one archive and started by the host's own Python, version 3.9 or later, with nothing
installed: modules here import the standard library and each other. `serve` answers one connection and dies
with it. Each job has its own detached runner, which dies when the job is over. They communicate by files; see
`workdir.py`. Open `runner.py` first.
"""
