"""JSON responses of the page: views as they are, and errors with a hint about what you can do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentctl.views import as_json, shown_fields
from daemon.exits import NOT_THERE, status_of_code

AnswerFunction = Callable[[Request], Any]

STATUS = {NOT_THERE: 404}
"""HTTP statuses by exit status; all other errors are 400."""


class ViewResponse(JSONResponse):
    """A view as JSON; NaN and infinity become null. The encoder handles nested views without a copy."""

    def render(self, content: Any) -> bytes:
        spell = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=shown_fields).encode
        try:
            return spell(content).encode()
        except ValueError:
            return spell(_replace_non_finite(as_json(content))).encode()


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shorten_text(text: str, most: int) -> str:
    """Return a text of at most that many characters; one that was cut says so at its end."""
    return text if len(text) <= most else f"{text[:most]}\n(cut: {len(text)} characters)"


def json_endpoint(answer: AnswerFunction) -> Callable[[Request], Response]:
    """Return an endpoint that sends the result of `answer` as JSON, and our errors with their hints."""

    def endpoint(request: Request) -> Response:
        try:
            return ViewResponse(answer(request))
        except Exception as error:
            code = getattr(error, "code", None)
            if not isinstance(code, str):
                raise
            return error_response(code, str(error), getattr(error, "hint", None))

    return endpoint


def error_response(code: str, message: str, hint: str | None = None) -> Response:
    """Return an error as JSON: a stable code, what happened, and what to do."""
    status = STATUS.get(status_of_code(code), 400)
    return ViewResponse({"error": {"code": code, "message": message, "hint": hint}}, status_code=status)
