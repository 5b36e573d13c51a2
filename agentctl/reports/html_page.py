"""Renders a report as one HTML file: no scripts, no requests, its style inside, for light and dark mode.

The content security policy in its head allows only that style sheet, by its hash. Sections are functions
of the document; text that a model wrote is escaped (`markup`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256

from agentctl.formatting import (
    LEVELS,
    format_count,
    format_duration,
    format_ms,
    format_percent,
    format_speedup,
    format_usd,
)
from agentctl.reports.document import KernelReport, ReportDocument
from agentctl.reports.html_blocks import fact_table, html_section
from agentctl.reports.kernel_sections import best_kernel_section, path_section, profile_section
from agentctl.reports.markup import Child, Html, element
from agentctl.reports.phrases import (
    SOURCE_NOTES,
    below_bound_note,
    confidence_note,
    latency_with_interval,
    report_title,
    run_ending,
    start_rows,
)
from agentctl.reports.style import SHEET
from agentctl.reports.work_sections import attempts_section, spending_section
from state.model import Level
from targets.registry import roofline_name


def render_page(found: ReportDocument) -> str:
    """Return the report as an HTML document."""
    digest = b64encode(sha256(SHEET.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", report_title(found)),
        element("style", Html(SHEET)),
    )
    body = element("body", _page_header(found), element("main", *_page_sections(found)), _page_footer(found))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _page_sections(found: ReportDocument) -> Iterator[Child]:
    yield _problem_section(found)
    if found.best is not None and found.initial is not None:
        yield best_kernel_section(found, found.best)
        yield profile_section(found, found.initial, found.best)
        yield path_section(found)
    yield attempts_section(found)
    yield spending_section(found)
    yield _reproduction_section(found)
    yield _environment_section(found)


# --- header and summary ----------------------------------------------------------------------------


def _page_header(found: ReportDocument) -> Html:
    run = found.run
    return element(
        "header",
        element("h1", report_title(found)),
        element("p", element("code", found.problem.formula), class_="dim"),
        element(
            "p",
            f"Run {run.id}: {run_ending(found)}; {run.target}, size {run.size}, seed {run.seed}.",
            class_="dim",
        ),
        element("dl", *_summary_cards(found), class_="cards"),
    )


def _summary_cards(found: ReportDocument) -> Iterator[Html]:
    run, spending = found.run, found.spending
    if found.initial is not None and found.best is not None:
        yield _summary_card(
            "initial kernel", format_ms(run.initial_ms), latency_with_interval(found.initial.latency)
        )
        yield _summary_card("best kernel", format_ms(run.best_ms), latency_with_interval(found.best.latency))
        yield _summary_card("speed-up", format_speedup(run.speedup), confidence_note(run.best_wins_percent))
        yield _summary_card(
            f"of the {roofline_name(run.target)}",
            format_percent(run.percent_of_peak),
            format_ms(run.plain_bound_ms),
        )
        yield _summary_card(
            "of the model bound",
            format_percent(run.percent_of_model_bound),
            below_bound_note(run) or format_ms(run.model_bound_ms),
        )
        for name, text in start_rows(found):
            yield _summary_card(name, text, "")
        yield _summary_card("found correct on", LEVELS[_kernel_level(found.best)], _proof_note(found.best))
    judged = f"{format_count(run.evaluated, 'verdict')}, {run.looked_at} looked at"
    yield _summary_card("kernels proposed", str(run.proposed), judged)
    tokens = f"{spending.calls} calls, {spending.tokens} tokens" if spending.calls else "no model was asked"
    yield _summary_card("cost", format_usd(spending.usd), tokens)
    yield _summary_card("time", format_duration(spending.seconds), format_count(run.round, "round"))


def _summary_card(name: str, value: str, note: str) -> Html:
    big = "big" if len(value) < 16 else None
    return element(
        "div",
        element("dt", name),
        element("dd", value, class_=big),
        element("dd", note, class_="note"),
        class_="card",
    )


def _kernel_level(kernel: KernelReport) -> Level:
    return Level(kernel.level)


def _proof_note(kernel: KernelReport) -> str:
    if kernel.identity is None:
        return ""
    return "its formula is the reference's" if kernel.identity == "proven" else "tested in numbers only"


def _problem_section(found: ReportDocument) -> Html:
    problem = found.problem
    work = problem.work
    if not work:
        return html_section(
            "What was optimised", element("p", f"{problem.name}, whose files this program cannot read.")
        )
    products = f"{work['matmul_flops']:,} FLOPs of {work['matmul_dtype']} products"
    least = f"{work['bytes']:,} bytes, {products}, {work['other_flops']:,} others"
    rows = [
        ("formula", element("code", problem.formula)),
        ("size", f"{problem.size}: {', '.join(f'{name} = {value}' for name, value in problem.dims.items())}"),
        ("inputs", element("code", ", ".join(problem.inputs))),
        ("outputs", element("code", ", ".join(problem.outputs))),
        (
            "tolerance",
            f"relative L2 error below {problem.rel_l2:g} on seeds {', '.join(map(str, problem.seeds))}",
        ),
        (
            "least work",
            least,
        ),
        (
            "lower bounds",
            (
                f"{roofline_name(found.run.target)} {format_ms(found.run.plain_bound_ms)}, "
                f"model bound {format_ms(found.run.tight_bound_ms)}"
            ),
        ),
    ]
    where = "comes with the program" if problem.builtin else "is one of its user's own"
    told = element("p", f"The problem {problem.name} {where}.")
    return html_section("What was optimised", told, fact_table(rows))


# --- reproduction ----------------------------------------------------------------------------------


def _reproduction_section(found: ReportDocument) -> Html:
    steps = found.reproduction
    parts = [
        ("Take what is needed out of the home that has the run", steps.extract),
        ("Judge the best kernel", steps.judge),
        ("Run again, in a home of its own", steps.again),
    ]
    content = [
        [element("h3", name), element("pre", element("code", "\n".join(lines)))]
        for name, lines in parts
        if lines
    ]
    files = [
        element(
            "li",
            element(
                "a", path, href=f"data:text/plain;base64,{b64encode(text.encode()).decode()}", download=path
            ),
        )
        for path, text in steps.files.items()
    ]
    return html_section(
        "Do it again",
        content,
        [element("p", "The problem's files, for a folder of that name:"), element("ul", files)]
        if files
        else None,
        element("ul", [element("li", _backticks_to_code(f"{note}."), class_="dim") for note in steps.notes]),
    )


def _backticks_to_code(text: str) -> list[Child]:
    """Return one of our own sentences, with the text between backticks as code, as in Markdown."""
    return [element("code", part) if place % 2 else part for place, part in enumerate(text.split("`"))]


def _environment_section(found: ReportDocument) -> Html:
    there = found.environment
    settings = [f"{key} = {value}" for key, value in there.changed_settings.items()]
    rows: list[tuple[str, Child]] = [
        ("judged by", f"{there.evaluator}, {there.toolchain}"),
        ("target", there.target),
        ("proposed by", ", ".join([*there.planners, *there.models])),
        (
            "settings that are not the defaults",
            [element("div", element("code", text)) for text in settings] or "none",
        ),
        ("program", f"{there.started_with} as it began, {there.written_with} as this was written"),
        ("began", there.began),
        ("problem", element("code", there.problem_digest)),
        ("state", element("code", there.state_hash)),
    ]
    return html_section("Environment", fact_table(rows))


def _page_footer(found: ReportDocument) -> Html:
    told = SOURCE_NOTES[found.run.predicted]
    return element("footer", element("p", f"{told} Written {found.environment.written} from the run's log."))
