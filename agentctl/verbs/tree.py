"""`agentctl tree`: draws the kernels of a run, each under its parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import click
from click import unstyle

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.formatting import format_discard_reason, format_ms, format_speedup
from agentctl.run_lookup import find_run
from agentctl.terminal_style import style
from agentctl.text_layout import terminal_width, wrap_line
from agentctl.views import as_json
from agentctl.views.tree import MARK_MEANINGS, CandidateMark, CandidateNode, CandidateTree
from agentctl.views.tree import candidate_tree as grown
from daemon import exits
from state.reader import LogReader

MANY_KERNELS = 40
"""From this many kernels on, dead ends are counted and not drawn, unless you ask for all."""

MAX_TITLE = 60
"""The most characters of a title that are shown."""

MIN_TITLE = 12
"""The fewest, however narrow the terminal is."""

STYLES = {
    CandidateMark.BEST: "good",
    CandidateMark.KEPT: "good",
    CandidateMark.REVERTED: "warn",
    CandidateMark.DISCARDED: "dim",
    CandidateMark.DUPLICATE: "dim",
    CandidateMark.REFUTED: "bad",
    CandidateMark.WRONG: "bad",
    CandidateMark.WAITS: "key",
}

_LOST = frozenset({CandidateMark.DISCARDED, CandidateMark.REFUTED, CandidateMark.WRONG})

_STAYS = frozenset(
    {
        CandidateMark.BEST,
        CandidateMark.KEPT,
        CandidateMark.REVERTED,
        CandidateMark.REFUTED,
        CandidateMark.WAITS,
    }
)


@click.command(epilog=exits.epilog())
@click.argument("run", shell_complete=complete_runs)
@click.option("--all", "all_", is_flag=True, help="Draw every kernel, however many there are.")
@click.option("--kept", is_flag=True, help="Draw only those that were kept, and what led to them.")
@common_options
def tree(session: Session, run: str, *, all_: bool, kept: bool) -> None:
    """Draw the lineage of a run's kernels, with latencies and what became of each.

    The tree of runs and their forks is `agentctl lineage`.
    """
    with LogReader.open(session.home) as reader, session.progress_bar("reading the run"):
        run = str(find_run(reader, run)["run"])
        found = grown(reader, run)
    few = kept or (len(found.nodes) > MANY_KERNELS and not all_)
    session.emit(as_json(found), "\n".join(_draw_tree(found, few=few)))


def _draw_tree(found: CandidateTree, *, few: bool) -> Iterator[str]:
    """Yield the tree as lines, with a legend of its marks."""
    if not found.nodes:
        yield f"{found.run} has no kernels yet"
        return
    shown = _visible_nodes(found.nodes) if few else list(found.nodes)
    hidden = _summarize_hidden(found.nodes, {one.id for one in shown}) if few else {}
    widest = max(2 * one.depth + len(one.id) for one in shown)
    width = terminal_width()
    last = _last_children(shown)
    open_lanes: list[bool] = []
    for node in shown:
        del open_lanes[node.depth :]
        lead = "".join("│ " if lane else "  " for lane in open_lanes[1:])
        branch = "" if node.depth == 0 else "└ " if node.id in last else "├ "
        open_lanes.append(node.id not in last)
        yield _format_node(node, f"{lead}{branch}{node.id}".ljust(widest + 1), width)
        if node.id in hidden:
            yield f"{lead}{'  ' if node.depth else ''}{style(f'  {hidden[node.id]}', 'dim')}"
    used = {one.mark for one in shown}
    yield ""
    meant = "   ".join(
        [*(f"{mark} {MARK_MEANINGS[mark]}" for mark in CandidateMark if mark in used), "o improved next"]
    )
    yield wrap_line(meant, width)
    predicted = any(one.predicted for one in shown)
    said = f"latencies are {'predicted, and ' if predicted else ''}followed by the speed-up over the parent"
    yield wrap_line(said, width)


def _visible_nodes(nodes: Sequence[CandidateNode]) -> list[CandidateNode]:
    """Return the nodes that survived, and those between them and the root."""
    parents = {one.id: one.parent for one in nodes}
    wanted: set[str] = set()
    for node in nodes:
        name: str | None = node.id if node.mark in _STAYS or node.depth == 0 else None
        while name is not None and name not in wanted:
            wanted.add(name)
            name = parents.get(name)
    return [one for one in nodes if one.id in wanted]


def _summarize_hidden(nodes: Sequence[CandidateNode], shown: set[str]) -> dict[str, str]:
    """Return, by parent, what happened to the hidden kernels, in words."""
    others = sorted((one for one in nodes if one.id not in shown), key=lambda one: one.parent or "")
    said = {}
    for parent, group in groupby(others, key=lambda one: one.parent or ""):
        reasons = Counter(_describe_outcome(one) for one in group)
        text = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        said[parent] = f"({reasons.total()} more: {text})"
    return said


def _describe_outcome(node: CandidateNode) -> str:
    """Return what happened to a kernel that led nowhere, in words."""
    return format_discard_reason(node.reason or node.verdict or ("no kernel" if node.error else "undecided"))


def _last_children(nodes: Sequence[CandidateNode]) -> set[str]:
    """Return the ids of the nodes that are the last child of their parent."""
    return set({one.parent: one.id for one in nodes}.values())


def _format_node(node: CandidateNode, place: str, width: int | None) -> str:
    mark = style(node.mark.value, STYLES[node.mark])
    beam = style("o", "key") if node.in_beam else " "
    said = [f"{mark}{beam} {place}"]
    if node.latency_ms is not None:
        gain = format_speedup(node.speedup) if node.speedup is not None else ""
        said.append(f"{format_ms(node.latency_ms):>10} {gain:>6}")
    else:
        said.append(f"{'-':>10} {'':>6}")
    fate = _describe_outcome(node) if node.mark in _LOST else ""
    if node.reason == "duplicate" and node.duplicate_of:
        fate = f"= {node.duplicate_of}"
    rest = sum(len(unstyle(one)) + 2 for one in said) + (len(fate) + 2 if fate else 0)
    room = MAX_TITLE if width is None else min(MAX_TITLE, max(MIN_TITLE, width - rest))
    title = " ".join((node.title or "").split())
    said.append(title if len(title) <= room else f"{title[: room - 3]}...")
    said += [style(fate, "dim")] if fate else []
    return "  ".join(said).rstrip()
