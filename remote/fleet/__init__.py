"""Makes one evaluator of many hosts: which hosts work, which one gets the next job, whose times compare.

`fleet.py` gives jobs to free slots and goes on when hosts fail. `fleet_host.py` holds the state of one host.
`drift.py` finds hosts that time the same kernel differently from the others. `member.py` says what a host
must be able to do; nothing here knows how a host is reached. `prefilter.py` asks the simulator first. Open
`fleet.py` first.
"""
