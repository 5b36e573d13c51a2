"""The basis of all values: digests, exact JSON, frozen models, errors and usage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a blob's bytes, in hexadecimal."""

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
PositiveMs = Annotated[float, Field(gt=0, allow_inf_nan=False)]

SYSTEM_STREAM = "system"
"""The stream that holds what all runs share: commands, configuration, the day's budget."""


def digest_of(data: bytes) -> str:
    """Return the content address of `data`: its SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Serialise JSON-like data so that equal values give equal bytes, on any machine.

    Raises:
        ValueError: `value` holds a NaN or an infinity that was not converted to a string.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def is_empty(value: object) -> bool:
    """Whether a field has nothing to say: left out then, it leaves the hashes of older logs as they are."""
    return not value


def is_unset(value: object) -> bool:
    """Whether an optional field has no value; 0 is one."""
    return value is None


def validation_reason(fault: Mapping[str, Any]) -> str:
    """Return the message of an entry of a ValidationError, without pydantic's prefix before our own."""
    raised = fault.get("ctx", {}).get("error")
    return str(raised) if isinstance(raised, ValueError) else str(fault["msg"])


class FrozenModel(BaseModel):
    """Base of all values: immutable, closed, and exact about floats in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)


def dump_json(value: FrozenModel) -> bytes:
    """Return what `model_dump_json` gives as bytes, without its options, which take as long as a small value.

    Raises:
        ValueError: JSON cannot represent the value.
    """
    return value.__pydantic_serializer__.to_json(value)


class ErrorInfo(FrozenModel):
    """Why something failed, for people and for repair: a stable code, a message, a line, and a hint."""

    code: str
    message: str
    line: int | None = None
    hint: str | None = None


class Usage(FrozenModel):
    """What one answer cost. `cost_usd` is None if the price is unknown, never 0."""

    cost_usd: float | None = Field(default=0.0, ge=0, allow_inf_nan=False)
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
