"""The semantic state: what two runs with the same history of decisions have in common, and its hash.

It leaves out run id, times, cost and deliveries, so a run that was killed a hundred times has the same hash
as its undisturbed twin.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from state.model import RunConfig, canonical_json
from state.run_state import RunState


def dump_semantic(state: RunState) -> dict[str, Any]:
    """Return the semantic state as JSON-like data."""
    unset = {name for name in _ONLY_IF_SET if getattr(state, name) in (None, {})}
    unset |= {"starts"} if state.starts == ("kernel",) else set()  # as in runs from before other starts
    data = state.model_dump(mode="json", exclude=_NOT_SEMANTIC | unset)
    data["open"] = {key: value["request"] for key, value in data["open"].items()}
    for config in (data["config"], data["pending_config"] or {"search": {}}):
        for name in _NOT_OF_OLD:
            if name in config and config[name] == _default_settings()[name]:
                del config[name]
        config.pop("starts", None)  # what came of the wish is in the state's `starts`
        for name in ("hosts", "host_tags"):  # where kernels ran, not how the run went
            config.pop(name, None)
        config["search"].pop("reuse", None)  # its result is in `sequences` and `experiences`
        if config["search"].get("target_ms") is None:  # keeps hashes from before this setting valid
            config["search"].pop("target_ms", None)
        if config["search"].get("strategy") == "beam":  # keeps hashes from before other strategies valid
            del config["search"]["strategy"]
    late = [one[part] or {} for one in data["late"].values() for part in ("kernel", "judged")]
    for one in data["late"].values():
        del one["slot"]  # not in older hashes; it follows from the round's slots
    for outcome in (*data["outcomes"].values(), *late):
        for name in _OF_THE_MACHINE:
            outcome.pop(name, None)
    return data


def state_hash(state: RunState) -> str:
    """Return the SHA-256 of the semantic state, in hexadecimal."""
    return hashlib.sha256(canonical_json(dump_semantic(state))).hexdigest()


@cache
def _default_settings() -> dict[str, Any]:
    return RunConfig().model_dump(mode="json", include=set(_NOT_OF_OLD))


_NOT_SEMANTIC = {
    "spent_usd",
    "reserved_usd",
    "unknown_cost",
    "spent_tokens",
    "spent_calls",
    "device_seconds",
    "prices",
    "short",
    "warned",
    "status_reason",
    "pause_cause",
    "before",
    "pinned",
}

_ONLY_IF_SET = ("prompts", "pending_prompts", "sequences", "experiences", "techniques", "models")
"""Fields that older runs do not have; leaving them out when unset keeps old hashes valid."""

_NOT_OF_OLD = ("llm", "cap_tokens", "cap_calls", "cap_seconds", "cap_device_seconds", "prefilter", "score")
"""Settings that older runs do not have; left out if they have their defaults."""

_OF_THE_MACHINE = (
    "usage", "cached_from", "stage_ms", "device_seconds", "tries", "predicted_ms", "where",
)  # fmt: skip
"""Fields of an outcome that describe how it was obtained, and not the result."""
