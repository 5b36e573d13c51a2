"""Hosts that are reached over SSH: who they are, whether they are who they say, and what runs there.

`host` names one, `host_keys` knows its key, `link` is the connection that comes back, `jobs` hands work to
the worker in `remote/hostside` and gets its result, whatever happens to the link in between. asyncssh is
imported in this package alone, and `remote.registry` imports the package when somebody asks for it. Open
`jobs.py` first.
"""
