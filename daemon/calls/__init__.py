"""Model calls: what lies between a role that asks and an endpoint that answers, made as durable as a
payment.

For each effect that asks models, roles are created with a way to ask (`llm_roles.py`). The n-th question
of an effect is rendered once and logged before it is sent (`durable_calls.py`, `request_rendering.py`).
An answer that is in the log is reused. An attempt that a crash left open is charged, and sent again as
logged. A call is sent only if it fits into every budget of its run and day (`budget_ledger.py`), and
when its endpoint's limits and circuit breaker admit it (`endpoints.py`). Open `durable_calls.py` first.
"""
