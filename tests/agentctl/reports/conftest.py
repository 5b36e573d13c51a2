"""What the tests of reports share: a report of a run that took milliseconds, and one full of hostile text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentctl.reports.document import FailureMode, LineCost, ReportDocument, gather_report
from agentctl.views.roofline import EngineRoof, KernelRoofline
from agentctl.views.timeline import BusyTimeline
from state.reader import LogReader

HOSTILE = (
    '</td></script><script>fetch("http://evil.test")</script><img src=x onerror=alert(1)>'
    "```\n# heading\n[link](http://evil.test) ![x](http://evil.test/x.png) @somebody | <!-- \u202e\x1b[31m"
)
ROOFLINE = KernelRoofline(
    peak_flops=8e13, bandwidth_bytes=7e11, ridge=110.0, intensity=55.0, attained_flops=1.8e13,
    ceiling_flops=3.8e13, attained_percent=47.0, moved_bytes=5e7, attained_bytes=3e11, bandwidth_percent=43.0,
    side="memory",
    engines=(EngineRoof("vector", 1.2e11, 30.0, 0.5, 0.17, 100.0, "compute"),),
)  # fmt: skip


@pytest.fixture
def made(home, finished) -> ReportDocument:
    with LogReader.open(home) as reader:
        now = "2026-01-02T03:04:05+00:00"
        return gather_report(reader, finished, owned=False, version="1.2.3", now=now)


@pytest.fixture
def below_bound(made) -> tuple[ReportDocument, str]:
    """The report of a run whose best latency is half of its model bound, and what it should say of that."""
    run = replace(made.run, percent_of_model_bound=200.0)
    note = "impossible: 200.0 % of the model bound; the model, the bound or the log is at fault"
    return replace(made, run=run), note


@pytest.fixture
def hostile(made) -> ReportDocument:
    """The report, had a model and a problem's author written what they please."""
    assert made.best is not None
    lanes = BusyTimeline(
        0.9, predicted=True, busy_percent={HOSTILE: (0, 50, 50, 100), "tensor": (100, 0, 3, 7)}
    )
    best = replace(
        made.best,
        source=f"# {HOSTILE}\nx = '{HOSTILE}'\n",
        title=HOSTILE,
        author=HOSTILE,
        bottleneck=HOSTILE,
        timeline=lanes,
        roofline=ROOFLINE,
        busy_ms={HOSTILE: 0.5, "dma": 0.7},
        counters={HOSTILE: 3.0},
        lines=(LineCost(1, 0.5, HOSTILE),),
        wasted=(HOSTILE,),
    )
    line = tuple(
        replace(
            one, title=HOSTILE, rewrites=(HOSTILE, "b"), technique=HOSTILE, author=HOSTILE, lesson=HOSTILE
        )
        for one in made.path.line
    )
    failure = FailureMode(HOSTILE, HOSTILE, 3, (HOSTILE,), (HOSTILE, "other"))
    return replace(
        made,
        best=best,
        initial=replace(best, counters={HOSTILE: 4.0}),
        diff=f"--- a\n+++ b\n@@ -1 +1 @@\n-{HOSTILE}\n+x",
        path=replace(made.path, line=line),
        tried=replace(made.tried, failures=(failure,)),
        problem=replace(made.problem, formula=HOSTILE, builtin=False),
        reproduction=replace(made.reproduction, files={"problem.toml": HOSTILE, "a/b.py": "x"}),
        environment=replace(made.environment, changed_settings={"run.problem": HOSTILE}),
    )
