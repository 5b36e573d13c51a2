"""`python -m daemon` is `agentd`."""

from daemon.main import main

main()
