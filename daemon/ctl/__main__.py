"""`python -m daemon.ctl` is `agentctl`."""

from daemon.ctl import main

main()
