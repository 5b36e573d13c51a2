"""The verbs of `agentctl`, a module each, or one for a family of small ones; `agentctl.app` lists them."""
