"""The semantic state: what two runs with the same history of decisions have in common, and its hash.

It leaves out run id, times, cost and deliveries, so a run that was killed a hundred times has the same hash
as its undisturbed twin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import BaseModel

from state.model import RunConfig, canonical_json
from state.run_state import RunState


def dump_semantic(state: RunState) -> dict[str, Any]:
    """Return the semantic state as JSON-like data."""
    data = _dump_small(state)
    data |= {name: [one.model_dump(mode="json") for one in getattr(state, name)] for name in _LISTS}
    data["outcomes"] = {key: _dump_outcome(one) for key, one in state.outcomes.items()}
    return data


def _dump_small(state: RunState) -> dict[str, Any]:
    """Return the semantic state without outcomes and `_LISTS`, which grow."""
    unset = {name for name in _ONLY_IF_SET if getattr(state, name) in (None, {})}
    unset |= set() if state.executors else {"executors"}  # as in runs from before rounds named them
    unset |= {"starts"} if state.starts == ("kernel",) else set()  # as in runs from before other starts
    data = state.model_dump(mode="json", exclude=_NOT_SEMANTIC | unset | {*_LISTS, "outcomes"})
    data["open"] = {key: value["request"] for key, value in data["open"].items()}
    for config in (data["config"], data["pending_config"] or {"search": {}}):
        for name in _NOT_OF_OLD:
            if name in config and config[name] == _default_settings()[name]:
                del config[name]
        config.pop("starts", None)  # what came of the wish is in the state's `starts`
        models = config.get("llm", {})
        for name in _NOT_OF_OLD_LLM:
            if name in models and models[name] == _default_settings()["llm"][name]:
                del models[name]
        for name in ("hosts", "host_tags"):  # where kernels ran, not how the run went
            config.pop(name, None)
        config["search"].pop("reuse", None)  # its result is in `sequences` and `experiences`
        if config["search"].get("target_ms") is None:  # keeps hashes from before this setting valid
            config["search"].pop("target_ms", None)
        if not config["search"].get("simplify"):  # keeps hashes from before runs did that valid
            config["search"].pop("simplify", None)
        if config["search"].get("strategy") == "beam":  # keeps hashes from before other strategies valid
            del config["search"]["strategy"]
    late = [one[part] or {} for one in data["late"].values() for part in ("kernel", "judged")]
    for one in data["late"].values():
        del one["slot"]  # not in older hashes; it follows from the round's slots
    for outcome in late:
        for name in _OF_THE_MACHINE:
            outcome.pop(name, None)
    return data


def state_hash(state: RunState) -> str:
    """Return the SHA-256 of the semantic state, in hexadecimal."""
    return hashlib.sha256(encode_semantic(state)).hexdigest()


def encode_semantic(state: RunState) -> bytes:
    """Return the canonical JSON of the semantic state.

    States share most of their values, so the texts of the larger ones are remembered: few of them change
    from one recorded hash to the next.
    """
    parts = {name: canonical_json(value) for name, value in _dump_small(state).items()}
    for name in _LISTS:
        parts[name] = b"[" + b",".join(map(_TEXTS.encode, getattr(state, name))) + b"]"
    outcomes = sorted(state.outcomes.items())
    named = (canonical_json(key) + b":" + _OUTCOME_TEXTS.encode(value) for key, value in outcomes)
    parts["outcomes"] = b"{" + b",".join(named) + b"}"
    return b"{" + b",".join(canonical_json(name) + b":" + parts[name] for name in sorted(parts)) + b"}"


class _TextCache:
    """The canonical JSON of values that never change, by identity; each is kept alive as long as its text."""

    def __init__(self, dump: Callable[[BaseModel], Any], most: int = 4096) -> None:
        self._dump = dump
        self._most = most
        self._texts: dict[int, tuple[BaseModel, bytes]] = {}

    def encode(self, value: BaseModel) -> bytes:
        """Return the canonical JSON of a value."""
        known = self._texts.get(id(value))
        if known is not None:
            return known[1]
        text = canonical_json(self._dump(value))
        if len(self._texts) >= self._most:
            self._texts.clear()
        self._texts[id(value)] = (value, text)
        return text


def _dump_outcome(outcome: BaseModel) -> dict[str, Any]:
    data = outcome.model_dump(mode="json")
    for name in _OF_THE_MACHINE:
        data.pop(name, None)
    return data


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
    "roles",
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

_NOT_OF_OLD_LLM = ("form", "repairer_form", "turns", "session_percent")
"""The same for settings of `llm`."""

_OF_THE_MACHINE = (
    "usage", "cached_from", "stage_ms", "device_seconds", "tries", "predicted_ms", "where",
)  # fmt: skip
"""Fields of an outcome that describe how it was obtained, and not the result."""

_LISTS = ("attempts", "memory", "reflections")
"""Fields that are long lists of values."""

_TEXTS = _TextCache(lambda value: value.model_dump(mode="json"))
_OUTCOME_TEXTS = _TextCache(_dump_outcome)
