"""Many hosts as one evaluator: which of them work, who gets the next job, whose times can be compared.

`fleet.py` gives jobs to free slots and goes on with the hosts that are left; `fleet_host.py` is what it knows
of one host, `drift.py` which hosts time the same kernel differently from the others. `member.py` says what a
host has to be able to do; nothing here knows how it is reached. `prefilter.py` asks the simulator first.
"""
