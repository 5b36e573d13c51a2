"""Completions of large language models, behind one small protocol, each endpoint of its own.

A request goes in, a completion or a typed failure comes out, and nothing else: no retries, no log, no
budget. What a failure is followed by is data (`failures.py`); whoever buys completions acts on it and writes
every attempt into the log. Open `completion.py` first, then `failures.py`, `registry.py` and
`http_provider.py`, on which `anthropic.py` and `openai.py` stand. What decides about buying is pure and
beside them: `prices.py`, `windows.py`, `limits.py`, `retry.py`. Keys are in `keys.py`, a model without a
model in `scripted.py`.
"""
