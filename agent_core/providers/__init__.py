"""LLM providers: one small protocol for completions, with a module for each kind of endpoint.

A request goes in; a completion or a typed failure comes out. Providers do not retry, log or keep budgets.
`failures.py` maps each kind of failure to its remedy, as data; the caller acts on it and logs every attempt.

Open `completion.py` first, then `failures.py`, `registry.py` and `http_provider.py`, the base of
`anthropic.py` and `openai.py`. Pure helpers for callers are in `prices.py`, `windows.py`, `limits.py` and
`retry.py`, keys in `keys.py`, and a provider without a model in `scripted.py`.
"""
