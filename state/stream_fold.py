"""The fold of any stream: a run's events fold to a `RunState`, the system stream's to a `SystemState`.

The writer, readers, `verify` and `replay` fold through here; what each event changes is in `state.fold` and
`state.system`.
"""

from __future__ import annotations

from state import fold, system
from state.events import Event
from state.fold import RunState
from state.model import SYSTEM_STREAM
from state.system import SystemState

StreamState = RunState | SystemState


def fold_event(stream: str, state: StreamState | None, event: Event) -> StreamState:
    """Fold one event into a stream's state.

    Raises:
        IllegalEvent: it cannot follow.
    """
    if stream == SYSTEM_STREAM:
        return system.apply_system_event(state, event)  # type: ignore[arg-type]  # the stream's name decides the fold
    return fold.apply_event(state, event)  # type: ignore[arg-type]


def state_hash(state: StreamState) -> bytes:
    """Return the SHA-256 of a state's semantic part."""
    text = system.state_hash(state) if isinstance(state, SystemState) else fold.state_hash(state)
    return bytes.fromhex(text)
