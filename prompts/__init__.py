"""The words that LLM roles are given, as data: templates, glossaries and menus, versioned by their hash.

No code that decides or calls anything lives here, and this room imports no other: `agent_core` renders
what it finds here. The built-in proposer needs no words, and it is the only proposer so far; the closed
vocabulary of techniques that it will share with LLM roles is its own. Open `agent_core/builtin/menu.toml`
first, which is what a menu for an LLM has to be made from.
"""
