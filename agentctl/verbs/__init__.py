"""The verbs of `agentctl`: one module each, or one for a family of small verbs; `agentctl.app` lists them."""
