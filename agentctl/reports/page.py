"""A report as one HTML file: no script, no request to anywhere, its style inside, in the light and the dark.

The policy in its head lets nothing in but that one style sheet, known by its hash. Sections are functions
of the document; what a model wrote enters as text (`markup`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256

from agentctl.reports.document import Document, Kernel
from agentctl.reports.kernels import best_kernel, path, profiles
from agentctl.reports.markup import Child, Html, el
from agentctl.reports.pieces import facts, section
from agentctl.reports.style import SHEET
from agentctl.reports.words import SOURCES, ending, interval, sure, title
from agentctl.reports.work import spent, tried
from agentctl.words import LEVELS, count, duration, ms, percentage, times, usd
from state.model import Level


def page(found: Document) -> str:
    """Return the report as an HTML document."""
    digest = b64encode(sha256(SHEET.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title(found)),
        el("style", Html(SHEET)),
    )
    body = el("body", _header(found), el("main", *_sections(found)), _footer(found))
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def _sections(found: Document) -> Iterator[Child]:
    yield _problem(found)
    if found.best is not None and found.initial is not None:
        yield best_kernel(found, found.best)
        yield profiles(found, found.initial, found.best)
        yield path(found)
    yield tried(found)
    yield spent(found)
    yield _again(found)
    yield _environment(found)


# --- what comes first ------------------------------------------------------------------------------


def _header(found: Document) -> Html:
    run = found.run
    return el(
        "header",
        el("h1", title(found)),
        el("p", el("code", found.problem.formula), class_="dim"),
        el(
            "p",
            f"Run {run.id}: {ending(found)}; {run.target}, size {run.size}, seed {run.seed}.",
            class_="dim",
        ),
        el("dl", *_cards(found), class_="cards"),
    )


def _cards(found: Document) -> Iterator[Html]:
    run, spending = found.run, found.spending
    if found.initial is not None and found.best is not None:
        yield _card("initial kernel", ms(run.initial_ms), interval(found.initial.latency))
        yield _card("best kernel", ms(run.best_ms), interval(found.best.latency))
        yield _card("speed-up", times(run.speedup), sure(run.best_wins_percent))
        yield _card("of the NKIBench roofline", percentage(run.percent_of_peak), ms(run.plain_bound_ms))
        yield _card("of the tight bound", percentage(run.percent_of_tight_bound), ms(run.tight_bound_ms))
        yield _card("found correct on", LEVELS[_level(found.best)], _proof(found.best))
    judged = f"{count(run.evaluated, 'verdict')}, {run.looked_at} looked at"
    yield _card("kernels proposed", str(run.proposed), judged)
    tokens = f"{spending.calls} calls, {spending.tokens} tokens" if spending.calls else "no model was asked"
    yield _card("cost", usd(spending.usd), tokens)
    yield _card("time", duration(spending.seconds), count(run.round, "round"))


def _card(name: str, value: str, note: str) -> Html:
    big = "big" if len(value) < 16 else None
    return el(
        "div", el("dt", name), el("dd", value, class_=big), el("dd", note, class_="note"), class_="card"
    )


def _level(kernel: Kernel) -> Level:
    return Level(kernel.level)


def _proof(kernel: Kernel) -> str:
    if kernel.identity is None:
        return ""
    return "its formula is the reference's" if kernel.identity == "proven" else "tested in numbers only"


def _problem(found: Document) -> Html:
    problem = found.problem
    work = problem.work
    if not work:
        return section(
            "What was optimised", el("p", f"{problem.name}, whose files this program cannot read.")
        )
    products = f"{work['matmul_flops']:,} FLOPs of {work['matmul_dtype']} products"
    least = f"{work['bytes']:,} bytes, {products}, {work['other_flops']:,} others"
    rows = [
        ("formula", el("code", problem.formula)),
        ("size", f"{problem.size}: {', '.join(f'{name} = {value}' for name, value in problem.dims.items())}"),
        ("inputs", el("code", ", ".join(problem.inputs))),
        ("outputs", el("code", ", ".join(problem.outputs))),
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
            f"NKIBench's roofline {ms(found.run.plain_bound_ms)}, tight bound {ms(found.run.tight_bound_ms)}",
        ),
    ]
    where = "comes with the program" if problem.builtin else "is one of its user's own"
    told = el("p", f"The problem {problem.name} {where}.")
    return section("What was optimised", told, facts(rows))


# --- doing it again --------------------------------------------------------------------------------


def _again(found: Document) -> Html:
    steps = found.reproduction
    parts = [
        ("Take what is needed out of the home that has the run", steps.extract),
        ("Judge the best kernel", steps.judge),
        ("Run again, in a home of its own", steps.again),
    ]
    content = [[el("h3", name), el("pre", el("code", "\n".join(lines)))] for name, lines in parts if lines]
    files = [
        el(
            "li",
            el("a", path, href=f"data:text/plain;base64,{b64encode(text.encode()).decode()}", download=path),
        )
        for path, text in steps.files.items()
    ]
    return section(
        "Do it again",
        content,
        [el("p", "The problem's files, for a folder of that name:"), el("ul", files)] if files else None,
        el("ul", [el("li", _coded(f"{note}."), class_="dim") for note in steps.notes]),
    )


def _coded(text: str) -> list[Child]:
    """Return a sentence of ours in which what stands between backticks is code, as it is in Markdown."""
    return [el("code", part) if place % 2 else part for place, part in enumerate(text.split("`"))]


def _environment(found: Document) -> Html:
    there = found.environment
    settings = [f"{key} = {value}" for key, value in there.changed_settings.items()]
    rows: list[tuple[str, Child]] = [
        ("judged by", f"{there.evaluator}, {there.toolchain}"),
        ("target", there.target),
        ("proposed by", ", ".join([*there.planners, *there.models])),
        ("settings that are not the defaults", [el("div", el("code", text)) for text in settings] or "none"),
        ("program", f"{there.started_with} as it began, {there.written_with} as this was written"),
        ("began", there.began),
        ("problem", el("code", there.problem_digest)),
        ("state", el("code", there.state_hash)),
    ]
    return section("Environment", facts(rows))


def _footer(found: Document) -> Html:
    told = SOURCES[found.run.predicted]
    return el("footer", el("p", f"{told} Written {found.environment.written} from the run's log."))
