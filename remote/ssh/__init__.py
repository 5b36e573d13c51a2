"""Reaches hosts over SSH: their addresses, their keys, the connection, and the jobs that run there.

`host` names a host and `host_keys` verifies its key. `link` is the connection, which reconnects. `jobs` sends
work to the worker in `remote/hostside` and gets its result, even if the link breaks in between. Only this
package imports asyncssh, and `remote.registry` imports it on demand. Open `jobs.py` first.
"""
