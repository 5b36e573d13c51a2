"""Renders a report as Markdown, for places that do not show HTML: a pull request, a terminal, a wiki.

Text that a model wrote stands in code that it cannot close, so it cannot become a heading, link, picture
or mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from agentctl.formatting import (
    LEVELS,
    format_count,
    format_discard_reason,
    format_duration,
    format_ms,
    format_percent,
    format_speedup,
    format_usd,
)
from agentctl.hidden_characters import escape_hidden
from agentctl.reports.document import KernelReport, ReportDocument
from agentctl.reports.phrases import (
    SOURCE_NOTES,
    below_bound_note,
    confidence_note,
    estimates_note,
    latency_source,
    latency_with_interval,
    report_title,
    run_ending,
    start_rows,
)
from agentctl.views.improvement_path import Improvement
from state.model import Level
from targets.registry import roofline_name


def render_markdown(found: ReportDocument) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    blocks = [block for section in _SECTIONS for block in section(found)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def inline_code(text: str) -> str:
    """Return any text as inline code that is also safe in a table."""
    flat = " ".join(escape_hidden(text).split()).replace("|", "\\|")
    if not flat:
        return ""
    mark = "`" * (_longest_backticks(flat) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{mark}{pad}{flat}{pad}{mark}"


def code_block(text: str, language: str = "") -> str:
    """Return any text as a code block."""
    fence = "`" * max(3, _longest_backticks(text) + 1)
    return f"{fence}{language}\n{escape_hidden(text.rstrip())}\n{fence}"


def _longest_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 99) -> str:
    """Return a table; columns from `right` on are right-aligned."""
    lines = [head, ["---:" if place >= right else "---" for place in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _header_section(found: ReportDocument) -> Iterator[str]:
    run, spending = found.run, found.spending
    yield f"# {report_title(found)}"
    yield inline_code(found.problem.formula)
    yield f"Run {inline_code(run.id)}: {run_ending(found)}; {run.target}, size {run.size}, seed {run.seed}."
    rows = []
    if found.initial is not None and found.best is not None:
        rows += [
            ("initial kernel", f"{format_ms(run.initial_ms)} {latency_with_interval(found.initial.latency)}"),
            ("best kernel", f"{format_ms(run.best_ms)} {latency_with_interval(found.best.latency)}"),
            (
                "speed-up",
                ", ".join(
                    filter(None, (format_speedup(run.speedup), confidence_note(run.best_wins_percent)))
                ),
            ),
            (
                f"of the {roofline_name(run.target)}",
                f"{format_percent(run.percent_of_peak)} of {format_ms(run.plain_bound_ms)}",
            ),
            (
                "of the model bound",
                f"{format_percent(run.percent_of_model_bound)} of {format_ms(run.model_bound_ms)}"
                + below_bound_note(run, before="; "),
            ),
            *start_rows(found),
            ("found correct on", LEVELS[Level(found.best.level)]),
        ]
    cost = f"{format_usd(spending.usd)}, {format_count(spending.calls, 'call')} of models"
    rows += [
        (
            "kernels proposed",
            f"{run.proposed}, {format_count(run.evaluated, 'verdict')}, {run.looked_at} looked at",
        ),
        ("cost", "; ".join(filter(None, (cost, estimates_note(found))))),
        ("time", f"{format_duration(spending.seconds)}, {format_count(run.round, 'round')}"),
    ]
    yield _markdown_table(("", ""), rows)


def _problem_section(found: ReportDocument) -> Iterator[str]:
    problem = found.problem
    yield "## What was optimised"
    if not problem.work:
        yield f"{inline_code(problem.name)}, whose files this program cannot read."
        return
    dims = ", ".join(f"{name} = {value}" for name, value in problem.dims.items())
    yield "\n".join([
        f"- {inline_code(problem.name)} ({problem.size}: {dims})",
        f"- inputs {inline_code(', '.join(problem.inputs))}",
        f"- outputs {inline_code(', '.join(problem.outputs))}",
        f"- relative L2 error below {problem.rel_l2:g} on seeds {', '.join(map(str, problem.seeds))}",
    ])  # fmt: skip


def _best_section(found: ReportDocument) -> Iterator[str]:
    best = found.best
    if best is None:
        return
    yield "## The best kernel"
    yield f"{inline_code(best.candidate)} by {inline_code(best.author)}: {inline_code(best.title)}"
    yield code_block(best.source, "python")
    if found.diff:
        yield "<details><summary>What changed from the initial kernel</summary>"
        yield code_block(found.diff, "diff")
        yield "</details>"


def _profile_section(found: ReportDocument) -> Iterator[str]:
    initial, best = found.initial, found.best
    if initial is None or best is None:
        return
    yield "## Before and after"
    bound = [inline_code(one.bottleneck or "unknown") for one in (initial, best)]
    yield f"Bound by {bound[0]} before, {bound[1]} after."
    if best.wasted:
        yield "\n".join(
            [
                "What the best kernel still does in vain:",
                "",
                *(f"- {inline_code(line)}" for line in best.wasted),
            ]
        )
    rows = [
        (inline_code(name), *(_busy_cell(one, name) for one in (initial, best)))
        for name in {**initial.busy_ms, **best.busy_ms}
        if initial.busy_ms.get(name) or best.busy_ms.get(name)
    ]
    yield _markdown_table((f"busy, {latency_source(best.latency)}", "initial", "best"), rows, right=1)


def _busy_cell(kernel: KernelReport, name: str) -> str:
    busy = kernel.busy_ms.get(name, 0.0)
    return f"{format_ms(busy)}, {100 * busy / kernel.latency.ms:.0f} %"


def _path_section(found: ReportDocument) -> Iterator[str]:
    if found.best is None:
        return
    yield "## The path of improvements"
    steps = [_step_item(number, one) for number, one in enumerate(found.path.line[1:], 1)]
    yield "\n".join(steps) if steps else "No change made it faster."
    taken = [
        f"- {one.kind}: {inline_code(one.candidate)} ({inline_code(one.reason)}), "
        f"back to {one.restored or 'nothing'}"
        for one in found.path.taken_back
    ]
    if taken:
        yield "### Taken back"
        yield "\n".join(taken)


def _step_item(number: int, one: Improvement) -> str:
    told = (
        f"{format_ms(one.latency.ms)} {latency_source(one.latency)}, {format_speedup(one.speedup)}, "
        f"{format_speedup(one.total)} in all"
    )
    several = [f"   - {inline_code(text)}" for text in one.rewrites if len(one.rewrites) > 1]
    name = f"{format_count(len(one.rewrites), 'rewrite')} together" if several else inline_code(one.title)
    by = f"{inline_code(one.technique or 'by hand')} by {inline_code(one.author)}"
    return "\n".join([f"{number}. {name} ({by}): {told}", *several])


def _attempts_section(found: ReportDocument) -> Iterator[str]:
    tried = found.tried
    if not (tried.techniques or tried.failures):
        return
    yield "## What was tried"
    names = ("tried", "valid", "kept", "improvements")
    yield _markdown_table(
        ("technique", "tried", "correct", "kept", "improvements", "median speed-up"),
        [
            (
                inline_code(one["technique"]),
                *(str(one[name]) for name in names),
                format_speedup(one["median_speedup"]),
            )
            for one in tried.techniques
        ],
        right=1,
    )
    if tried.discarded:
        told = ", ".join(
            f"{number} {format_discard_reason(reason)}" for reason, number in tried.discarded.items()
        )
        yield f"Correct and not kept: {told}."
    if tried.failures:
        yield _markdown_table(
            ("error", "stage", "kernels", "said"),
            [
                (
                    inline_code(one.code),
                    inline_code(one.stage),
                    str(one.count),
                    "<br>".join(map(inline_code, one.examples)),
                )
                for one in tried.failures
            ],
        )


def _reproduction_section(found: ReportDocument) -> Iterator[str]:
    steps = found.reproduction
    yield "## Do it again"
    lines = [*steps.extract, *steps.judge, *steps.again]
    yield code_block("\n".join(lines), "sh")
    yield "\n".join(f"- {note}" for note in steps.notes)


def _environment_section(found: ReportDocument) -> Iterator[str]:
    there = found.environment
    yield "## Environment"
    rows = [
        ("judged by", inline_code(f"{there.evaluator}, {there.toolchain}")),
        ("proposed by", inline_code(", ".join([*there.planners, *there.models]))),
        *((inline_code(key), inline_code(str(value))) for key, value in there.changed_settings.items()),
        ("program", inline_code(f"{there.started_with}, report by {there.written_with}")),
        ("began, written", f"{there.began}, {there.written}"),
        ("problem", inline_code(there.problem_digest)),
        ("state", inline_code(there.state_hash)),
    ]
    yield _markdown_table(("", ""), rows)
    yield SOURCE_NOTES[found.run.predicted]


_SECTIONS = (
    _header_section,
    _problem_section,
    _best_section,
    _profile_section,
    _path_section,
    _attempts_section,
    _reproduction_section,
    _environment_section,
)
