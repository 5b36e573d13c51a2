"""The process that traces and predicts one kernel: `python -m benchmarks.measured.predict JOB`, JOB as JSON.

Prints one JSON object: what is predicted, or `{"error": ...}` with exit status 1. The job names a file for
the traced program; when that file is there, it is read instead of tracing again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

from benchmarks.measured.naive import baselines
from nki_sim import harness, targets
from nki_sim.errors import KernelError, SimError
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import Program
from nki_sim.timing import counters
from nki_sim.timing.activity import QUEUES_OF, active_ns
from nki_sim.timing.counters import ConventionName
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.kernel_traits import kernel_traits
from nki_sim.timing.uncertainty import predict_interval
from nki_sim.timing.what_if import what_ifs


class Job(TypedDict):
    """What to predict; paths as text."""

    kernel: str
    reference: str | None
    args: list[str]
    entry: str | None
    target: str
    program: str
    counters: ConventionName | None
    interval: bool
    what_ifs: bool


def predict_case(job: Job) -> dict[str, Any]:
    """Latency, interval, draws, traits, counters, baselines, and how long it took to make them."""
    begun = time.perf_counter()
    program = trace_case(job)
    traced_at = time.perf_counter()
    found = forecast_program(program, targets.load(job["target"]))
    latency_ms = found.latency_ms
    timed_at = time.perf_counter()
    interval = _interval(found) if job["interval"] else {}
    ended = time.perf_counter()
    return {
        "instructions": len(found.compiled.program),
        "predicted_ms": latency_ms,
        "traits": kernel_traits(found).to_json(),
        **interval,
        **(_limits(found) if job["what_ifs"] else {}),
        "counters": _counters(found, job["counters"]),
        "baselines_ms": baselines(program, found.target),
        "seconds": {
            "trace": traced_at - begun,
            "predict": timed_at - traced_at,
            "interval": ended - timed_at,
        },
    }


def trace_case(job: Job) -> Program:
    """The program of the job's kernel, read when it was traced before, else kept for later."""
    kept = Path(job["program"])
    if kept.is_file():
        return Program.from_bytes(kept.read_bytes())
    path = Path(job["kernel"])
    source = harness.read_text(path)
    entry = job["entry"] or harness.find_entry(source)
    data = trace_bytes(source, args=_arguments(job), target=job["target"], entry=entry, filename=str(path))
    half = kept.with_suffix(".part")
    half.write_bytes(data)
    half.replace(kept)
    return Program.from_bytes(data)


def _arguments(job: Job) -> list[Any]:
    if job["args"]:
        return [harness.parse_argument(text) for text in job["args"]]
    reference = harness.ReferenceModule(Path(str(job["reference"])))
    return [harness.make_specs(item) for item in reference.make_arguments(reference.draw_inputs(0))]


def _interval(found: Forecast) -> dict[str, Any]:
    made = predict_interval(found)
    return {"lo_ms": made.lo_ms, "hi_ms": made.hi_ms, "draws_ms": made.draws_ms, "unlike": made.unlike}


def _limits(found: Forecast) -> dict[str, Any]:
    """How long each engine is busy, and what each what-if saves."""
    busy = {name: active_ns(found.timeline, queues) / 1e6 for name, queues in QUEUES_OF.items()}
    return {"busy_ms": busy, "saved_percent": {one.assumption: one.saved_percent for one in what_ifs(found)}}


def _counters(found: Forecast, convention: ConventionName | None) -> dict[str, float]:
    """The summary in the convention of the profile it is compared with: legacy for legacy kernels."""
    own: ConventionName = "legacy" if found.traced.dialect == "neuronxcc" else "explorer"
    return dict(counters.profile_counters(found, convention or own, as_profiled=True))


def main(argv: list[str]) -> int:
    """Predict the job of the first argument."""
    try:
        print(json.dumps(predict_case(json.loads(argv[0]))))
    except KernelError as error:
        print(json.dumps({"error": f"line {error.line}: {error.code}: {error.message}"}))
        return 1
    except (SimError, OSError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
