"""Asking a pool's worker, whose answers are `{"ok": ...}` or `{"error": {"code", "message"}}`, in JSON."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from agent_core.roles import RoleError
from state.model import ErrorInfo

if TYPE_CHECKING:
    from agent_core.roles.process_pool import ProcessPool


async def ask_worker(pool: ProcessPool, request: str, who: str) -> dict[str, Any]:
    """Return what a worker answered; `who` is what runs in the pool, in words.

    Raises:
        RoleError: the worker's own error, or `worker_died`.
    """
    try:
        made = json.loads(await pool.run(request))
    except BrokenProcessPool as error:
        raise make_role_error("worker_died", f"{who}'s process died on this request") from error
    if "error" in made:
        raise make_role_error(made["error"]["code"], made["error"]["message"])
    answer: dict[str, Any] = made["ok"]
    return answer


def make_role_error(code: str, message: str) -> RoleError:
    """Return the error of a role that cannot answer, for this reason."""
    return RoleError(ErrorInfo(code=code, message=message))
