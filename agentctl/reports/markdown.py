"""A report as Markdown, for where HTML is not shown: a pull request, a terminal, a wiki.

What a model wrote stands in code, which nothing in it can end: no heading, link, picture or mention of
somebody comes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from agentctl.reports.document import Document, Kernel
from agentctl.reports.words import SOURCES, ending, how, interval, sure, title
from agentctl.views.path import Improvement
from agentctl.visible import visible
from agentctl.words import LEVELS, count, discarded, duration, ms, percentage, times, usd
from state.model import Level


def markdown(found: Document) -> str:
    """Return the report as GitHub's Markdown."""
    blocks = [block for section in _SECTIONS for block in section(found)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def quoted(text: str) -> str:
    """Return any text as code in a line, also of a table."""
    flat = " ".join(visible(text).split()).replace("|", "\\|")
    if not flat:
        return ""
    mark = "`" * (_longest(flat) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{mark}{pad}{flat}{pad}{mark}"


def fenced(text: str, language: str = "") -> str:
    """Return any text as a block of code."""
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}{language}\n{visible(text.rstrip())}\n{fence}"


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 99) -> str:
    """Return a table; columns from `right` on are set to the right."""
    lines = [head, ["---:" if place >= right else "---" for place in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _top(found: Document) -> Iterator[str]:
    run, spending = found.run, found.spending
    yield f"# {title(found)}"
    yield quoted(found.problem.formula)
    yield f"Run {quoted(run.id)}: {ending(found)}; {run.target}, size {run.size}, seed {run.seed}."
    rows = []
    if found.initial is not None and found.best is not None:
        rows += [
            ("initial kernel", f"{ms(run.initial_ms)} {interval(found.initial.latency)}"),
            ("best kernel", f"{ms(run.best_ms)} {interval(found.best.latency)}"),
            ("speed-up", ", ".join(filter(None, (times(run.speedup), sure(run.best_wins_percent))))),
            ("of NKIBench's roofline", f"{percentage(run.percent_of_peak)} of {ms(run.plain_bound_ms)}"),
            ("of the tight bound", f"{percentage(run.percent_of_tight_bound)} of {ms(run.tight_bound_ms)}"),
            ("found correct on", LEVELS[Level(found.best.level)]),
        ]
    rows += [
        ("kernels proposed", f"{run.proposed}, {count(run.evaluated, 'verdict')}, {run.looked_at} looked at"),
        ("cost", f"{usd(spending.usd)}, {count(spending.calls, 'call')} of models"),
        ("time", f"{duration(spending.seconds)}, {count(run.round, 'round')}"),
    ]
    yield _table(("", ""), rows)


def _problem(found: Document) -> Iterator[str]:
    problem = found.problem
    yield "## What was optimised"
    if not problem.work:
        yield f"{quoted(problem.name)}, whose files this program cannot read."
        return
    dims = ", ".join(f"{name} = {value}" for name, value in problem.dims.items())
    yield "\n".join([
        f"- {quoted(problem.name)} ({problem.size}: {dims})",
        f"- inputs {quoted(', '.join(problem.inputs))}",
        f"- outputs {quoted(', '.join(problem.outputs))}",
        f"- relative L2 error below {problem.rel_l2:g} on seeds {', '.join(map(str, problem.seeds))}",
    ])  # fmt: skip


def _best(found: Document) -> Iterator[str]:
    best = found.best
    if best is None:
        return
    yield "## The best kernel"
    yield f"{quoted(best.candidate)} by {quoted(best.author)}: {quoted(best.title)}"
    yield fenced(best.source, "python")
    if found.diff:
        yield "<details><summary>What changed from the initial kernel</summary>"
        yield fenced(found.diff, "diff")
        yield "</details>"


def _profiles(found: Document) -> Iterator[str]:
    initial, best = found.initial, found.best
    if initial is None or best is None:
        return
    yield "## Before and after"
    bound = [quoted(one.bottleneck or "unknown") for one in (initial, best)]
    yield f"Bound by {bound[0]} before, {bound[1]} after."
    rows = [
        (quoted(name), *(_busy(one, name) for one in (initial, best)))
        for name in {**initial.busy_ms, **best.busy_ms}
        if initial.busy_ms.get(name) or best.busy_ms.get(name)
    ]
    yield _table((f"busy, {how(best.latency)}", "initial", "best"), rows, right=1)


def _busy(kernel: Kernel, name: str) -> str:
    busy = kernel.busy_ms.get(name, 0.0)
    return f"{ms(busy)}, {100 * busy / kernel.latency.ms:.0f} %"


def _path(found: Document) -> Iterator[str]:
    if found.best is None:
        return
    yield "## The path of improvements"
    steps = [_step(number, one) for number, one in enumerate(found.path.line[1:], 1)]
    yield "\n".join(steps) if steps else "No change made it faster."
    taken = [
        f"- {one.kind}: {quoted(one.candidate)} ({quoted(one.reason)}), back to {one.restored or 'nothing'}"
        for one in found.path.taken_back
    ]
    if taken:
        yield "### Taken back"
        yield "\n".join(taken)


def _step(number: int, one: Improvement) -> str:
    told = f"{ms(one.latency.ms)} {how(one.latency)}, {times(one.speedup)}, {times(one.total)} in all"
    several = [f"   - {quoted(text)}" for text in one.rewrites if len(one.rewrites) > 1]
    name = f"{count(len(one.rewrites), 'rewrite')} together" if several else quoted(one.title)
    by = f"{quoted(one.technique or 'by hand')} by {quoted(one.author)}"
    return "\n".join([f"{number}. {name} ({by}): {told}", *several])


def _tried(found: Document) -> Iterator[str]:
    tried = found.tried
    if not (tried.techniques or tried.failures):
        return
    yield "## What was tried"
    names = ("tried", "valid", "kept", "improvements")
    yield _table(
        ("technique", "tried", "correct", "kept", "improvements", "median speed-up"),
        [
            (quoted(one["technique"]), *(str(one[name]) for name in names), times(one["median_speedup"]))
            for one in tried.techniques
        ],
        right=1,
    )
    if tried.discarded:
        told = ", ".join(f"{number} {discarded(reason)}" for reason, number in tried.discarded.items())
        yield f"Correct and not kept: {told}."
    if tried.failures:
        yield _table(
            ("error", "stage", "kernels", "said"),
            [
                (quoted(one.code), quoted(one.stage), str(one.count), "<br>".join(map(quoted, one.examples)))
                for one in tried.failures
            ],
        )


def _again(found: Document) -> Iterator[str]:
    steps = found.reproduction
    yield "## Do it again"
    lines = [*steps.extract, *steps.judge, *steps.again]
    yield fenced("\n".join(lines), "sh")
    yield "\n".join(f"- {note}" for note in steps.notes)


def _environment(found: Document) -> Iterator[str]:
    there = found.environment
    yield "## Environment"
    rows = [
        ("judged by", quoted(f"{there.evaluator}, {there.toolchain}")),
        ("proposed by", quoted(", ".join([*there.planners, *there.models]))),
        *((quoted(key), quoted(str(value))) for key, value in there.changed_settings.items()),
        ("program", quoted(f"{there.started_with}, report by {there.written_with}")),
        ("began, written", f"{there.began}, {there.written}"),
        ("problem", quoted(there.problem_digest)),
        ("state", quoted(there.state_hash)),
    ]
    yield _table(("", ""), rows)
    yield SOURCES[found.run.predicted]


_SECTIONS = (_top, _problem, _best, _profiles, _path, _tried, _again, _environment)
