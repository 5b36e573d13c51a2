"""`nki-sim profile`: predicted time and counters, and what limits the kernel."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from nki_sim import targets
from nki_sim.cli.grammar import kernel_options
from nki_sim.cli.kernels import traced_on_shapes
from nki_sim.cli.show import Report
from nki_sim.cli.verb import Verb
from nki_sim.cli.watch import stage
from nki_sim.timing import counters, explain, schedule
from nki_sim.timing.forecast import forecast


def _profile(options: argparse.Namespace, report: Report) -> int:
    program = traced_on_shapes(options, report)
    if report["checks"]:
        return 1
    target = targets.load(program.target)
    with stage("predicting"):
        found = forecast(program, target)
        report["predicted"] = asdict(
            schedule.predict(found.compiled.program, target, timeline=found.timeline)
        )
        report["explanation"] = asdict(explain.explain(found))
        report["counters"] = counters.profile(found)
    return 0


VERB = Verb(
    name="profile",
    text="predict time and counters, and say what limits the kernel",
    action=_profile,
    options=kernel_options,
    keys={"predicted": None, "explanation": None},
)
