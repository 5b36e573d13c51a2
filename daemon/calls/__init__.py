"""Calls to models: what is between a role that asks and an endpoint that answers, as durable as a payment.

For each effect that asks models, roles are put together with a way to ask (`llm_roles.py`). The n-th question
of an effect is rendered once and logged before it is sent (`durable_calls.py`, `request_rendering.py`); an
answer that the log has is taken from there, an attempt that a crash left open is charged and sent again as it
was logged. Nothing is sent before it fits into every budget of run and day (`budget_ledger.py`), and before
its endpoint's limits and breaker let it through (`endpoints.py`). Open `durable_calls.py` first.
"""
