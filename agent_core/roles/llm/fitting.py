"""Makes the values of a prompt fit; each role has a table of what is dropped first.

A value is a text, which stays whole, or items, which are dropped one by one, least important first. Kernel,
problem and error are texts: if they do not fit, the prompt is refused and never silently shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent_core.roles import RoleError
from agent_core.roles.ask_protocol import TokenBudget
from state.model import ErrorInfo


def _join_lines(items: Sequence[str]) -> str:
    return "\n".join(items)


@dataclass(frozen=True, slots=True)
class PromptItems:
    """A value in pieces, in the order in which they are shown.

    The piece with the highest of `ranks` is dropped first, by default the last piece. `none` is shown if
    there were no pieces at all; `show` joins the pieces that are left.
    """

    pieces: tuple[str, ...]
    none: str = ""
    ranks: tuple[float, ...] = ()
    show: Callable[[Sequence[str]], str] = field(default=_join_lines)

    def render(self, left: Sequence[int]) -> str:
        """Return the value with the pieces `left`, and a note on how many were dropped."""
        if not self.pieces:
            return self.none
        gone = len(self.pieces) - len(left)
        note = f"({gone} {'more ' if left else ''}left out for want of room)" if gone else ""
        shown = self.show([self.pieces[at] for at in left]) if left else ""
        return "\n".join(part for part in (shown, note) if part)

    def least_important(self, left: Sequence[int]) -> int:
        """Return which of the pieces `left` is dropped next."""
        return max(left, key=lambda at: (self.ranks[at] if self.ranks else 0.0, at))


class ShedStep(NamedTuple):
    """One step of making room: drop pieces of `value` until `keep` are left."""

    value: str
    keep: int


def fit_values(
    values: Mapping[str, str | PromptItems], order: Sequence[ShedStep], room: TokenBudget
) -> dict[str, str]:
    """Return the values as texts that fit together, dropping pieces in the order of the table.

    Raises:
        RoleError: `no_room`: what must stay is too large by itself.
    """
    left = {
        name: list(range(len(item.pieces))) for name, item in values.items() if isinstance(item, PromptItems)
    }
    texts = {name: _render_value(item, left.get(name, ())) for name, item in values.items()}
    sizes = {name: room.count(text) for name, text in texts.items()}
    for name, keep in order:
        item = values[name]
        assert isinstance(item, PromptItems)
        while sum(sizes.values()) > room.tokens and len(left[name]) > keep:
            left[name].remove(item.least_important(left[name]))
            texts[name] = item.render(left[name])
            sizes[name] = room.count(texts[name])
    if sum(sizes.values()) > room.tokens:
        raise RoleError(_no_room_error(sizes, room))
    return texts


def _render_value(item: str | PromptItems, left: Sequence[int]) -> str:
    return item if isinstance(item, str) else item.render(left)


def _no_room_error(sizes: Mapping[str, int], room: TokenBudget) -> ErrorInfo:
    largest = max(sizes, key=sizes.__getitem__)
    text = (
        f"the prompt's values need {sum(sizes.values())} tokens and have {room.tokens}, with all dropped that"
        f" may be; most of them are the {largest} ({sizes[largest]})"
    )
    return ErrorInfo(code="no_room", message=text, hint="use a model with a larger context window")
