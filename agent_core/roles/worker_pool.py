"""Sends requests to a worker pool; answers are JSON, `{"ok": ...}` or `{"error": {"code", "message"}}`."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from agent_core.process_pool import JobDeadlineError
from agent_core.roles import RoleError
from state.model import ErrorInfo
from state.step_keeper import STEP_KEEPER

if TYPE_CHECKING:
    from agent_core.process_pool import ProcessPool


WORKER_DIED = "worker_died"
"""The code of a job whose processes died, each time; another time may help."""


async def ask_worker(pool: ProcessPool, request: str, who: str) -> dict[str, Any]:
    """Return a worker's answer; `who` describes what runs in the pool, for messages.

    Raises:
        RoleError: the worker's own error, `worker_died` or `worker_deadline`.
    """
    try:
        keeper = STEP_KEEPER.get()
        if keeper is None:
            text = await pool.run(request)
        else:
            text = await keeper.recall(f"{who}\n{request}", lambda: pool.run(request), prepare=pool.prepare)
        made = json.loads(text)
    except BrokenProcessPool as error:
        raise make_role_error(WORKER_DIED, f"{who}'s process died on this request") from error
    except JobDeadlineError as error:
        raise make_role_error("worker_deadline", f"{who}: {error}") from error
    if "error" in made:
        raise make_role_error(made["error"]["code"], made["error"]["message"])
    answer: dict[str, Any] = made["ok"]
    return answer


def make_role_error(code: str, message: str) -> RoleError:
    """Return the error of a role that cannot answer, with this code and message."""
    return RoleError(ErrorInfo(code=code, message=message))
