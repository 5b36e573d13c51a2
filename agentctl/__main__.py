"""`python -m agentctl` is `agentctl`."""

from agentctl import main

main()
