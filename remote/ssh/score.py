"""The end-to-end score: runs the user's own program with a kernel and with the first kernel, and compares.

Candidate and baseline take turns on one host. Home parses the numbers from what the command printed. A gate
passes if the candidate reaches the required ratio to the baseline, or could within the scatter of the runs.
If a kernel is faster alone but the program does not gain, the gate rejects it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext, rejected_outcome
from remote.judge.job import GrepJob, JudgeOutcome
from remote.pool import WorkerPool
from remote.ssh.errors import HostProtocolError
from remote.ssh.steps import SHORT_S, EvaluationSteps
from state.model import Benchmark, ScoreConfig, Verdict, canonical_json
from targets.registry import starting_kernel

_MOST_SAMPLES = 10_000
_OUTPUT_CHARS = 64 << 10
_MOST = 1e100  # keeps ratios of such numbers finite
_PERCENTILES = (50, 90, 99)


class ScoreError(Exception):
    """The command gave no number: it failed, took too long, or printed something else."""


@dataclass(frozen=True, slots=True)
class EndToEndScore:
    """The metric's samples of a candidate and of the baseline, and the number of runs for each."""

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    better: str

    @property
    def ratio(self) -> float:
        """How many times better the candidate is than the baseline, by the medians."""
        ours, theirs = median(self.candidate), median(self.baseline)
        return ours / theirs if self.better == "higher" else theirs / ours

    @property
    def noise_ratio(self) -> float:
        """The scatter of the ratio: half the interquartile range of each side, relative, added up."""
        return _relative_scatter(self.candidate) + _relative_scatter(self.baseline)

    @property
    def latency_ms(self) -> float:
        """The candidate's median as a time: the metric, or for a throughput the milliseconds per unit."""
        value = median(self.candidate)
        return value if self.better == "lower" else 1e3 / value

    def meets_ratio(self, least_ratio: float) -> bool:
        """Whether the candidate reaches the ratio, or may reach it within the scatter."""
        return self.ratio * (1 + self.noise_ratio) >= least_ratio

    def profile_fields(self) -> dict[str, Any]:
        """The fields that a profile shows of the score."""
        return {
            "ratio": self.ratio,
            "noise_ratio": self.noise_ratio,
            "better": self.better,
            "candidate": percentiles(self.candidate),
            "baseline": percentiles(self.baseline),
        }


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of samples by name, such as `p50`; a single sample is its own percentile."""
    if len(samples) == 1:
        return {f"p{percent}": samples[0] for percent in _PERCENTILES}
    cuts = quantiles(samples, n=100, method="inclusive")
    return {f"p{percent}": cuts[percent - 1] for percent in _PERCENTILES}


async def measure_score(
    steps: EvaluationSteps, run: EvaluationContext, *, config: ScoreConfig, workers: WorkerPool
) -> EndToEndScore:
    """Run the command on the host for a candidate and, in turns, for the problem's first kernel.

    Raises:
        ScoreError: the command gave no number for the candidate.
        InfrastructureError: it gave none for the baseline, or the host could not be reached.
    """
    payload = {
        "command": list(config.command),
        "folder": config.folder,
        "kernels": [run.source.decode(), starting_kernel(run.problem, run.request.target).decode()],
        "runs": config.runs,
        "timeout_s": config.timeout_seconds,
    }
    deadline_s = 2 * config.runs * config.timeout_seconds + SHORT_S
    answer = await steps.run_step("score", payload, cores=1, deadline_s=deadline_s)
    told = answer.fields.get("runs")
    if (
        not isinstance(told, list)
        or [len(runs) for runs in told if isinstance(runs, list)] != [config.runs] * 2
    ):
        raise HostProtocolError(f"{steps.address}: step score has not the runs of two kernels")
    try:
        baseline = await parse_samples(told[1], config, workers)
    except ScoreError as error:
        text = f"{steps.address}: the score's command does not work with the problem's own kernel: {error}"
        raise InfrastructureError("score_command", text, retryable=False) from error
    return EndToEndScore(await parse_samples(told[0], config, workers), baseline, config.better)


async def parse_samples(runs: Sequence[Any], config: ScoreConfig, workers: WorkerPool) -> tuple[float, ...]:
    """Return the metric's samples from the command's runs.

    Raises:
        ScoreError: a run failed, or gave no positive number.
    """
    outputs: list[str] = []
    for run in runs:
        fields = run if isinstance(run, Mapping) else {}
        if fields.get("status") is None:
            raise ScoreError(f"the command did not end within {config.timeout_seconds:g} s")
        if fields["status"] != 0:
            last = (str(fields.get("errors")).strip().splitlines() or ["it printed no error"])[-1]
            raise ScoreError(f"the command ended with status {fields['status']}: {last[:300]}")
        outputs.append(str(fields.get("output"))[-_OUTPUT_CHARS:])
    if config.pattern is None:
        numbers = (_read_numbers(run, output, config) for run, output in zip(runs, outputs, strict=True))
        found = [number for each in numbers for number in each]
    else:
        found = await _match_numbers(config.pattern, outputs, workers)
    if not all(1 / _MOST < value < _MOST for value in found):
        raise ScoreError("the command told a number that is not positive, or no measurement")
    return tuple(found[:_MOST_SAMPLES])


def add_to_profile(outcome: JudgeOutcome, score: EndToEndScore) -> JudgeOutcome:
    """Return the outcome of a correct kernel with the score in its profile, if it has one."""
    if outcome.profile is None:
        return outcome
    profile = {**json.loads(outcome.profile), "score": score.profile_fields()}
    return outcome.model_copy(update={"profile": canonical_json(profile).decode()})


def apply_gate(outcome: JudgeOutcome, score: EndToEndScore, config: ScoreConfig) -> JudgeOutcome:
    """Return the outcome of a correct kernel after the gate, which may reject it."""
    if score.meets_ratio(config.least_ratio):
        return add_to_profile(outcome, score)
    text = (
        f"end to end the kernel is {score.ratio:.3g} times as good as the problem's first one, "
        f"give or take {score.noise_ratio:.1%}; {config.least_ratio:g} times is asked for"
    )
    hint = "what is gained on the kernel alone is lost around it"
    return rejected_outcome(Verdict.UNSTABLE, "score", "score_contradicts", text, hint=hint)


def apply_objective(outcome: JudgeOutcome, score: EndToEndScore) -> JudgeOutcome:
    """Return the outcome of a correct kernel with the score in place of its latency."""
    spread = score.noise_ratio / 2
    middle = score.latency_ms
    found = Benchmark(
        latency_ms=middle,
        lo_ms=middle / (1 + spread),
        hi_ms=middle * (1 + spread),
        predicted=False,
        samples=len(score.candidate),
    )
    return add_to_profile(outcome, score).model_copy(update={"benchmark": found})


def failure_outcome(error: ScoreError) -> JudgeOutcome:
    """Return the outcome of a kernel with which the command does not work."""
    return rejected_outcome(Verdict.RUNTIME_ERROR, "score", "score_failed", str(error))


async def _match_numbers(pattern: str, outputs: Sequence[str], workers: WorkerPool) -> list[float]:
    """Return the metric from the runs' outputs by a pattern, searched in another process: it may never end.

    Raises:
        ScoreError: the pattern takes too long, or does not match.
    """
    try:
        told = await workers.find_matches(GrepJob(pattern=pattern, texts=tuple(outputs), most=_MOST_SAMPLES))
    except InfrastructureError as error:
        if error.code != "pattern_too_slow":
            raise
        raise ScoreError(f"its output cannot be searched for {pattern!r}: {error.message}") from error
    if not all(told):
        raise ScoreError(f"nothing in its output matches {pattern!r}")
    return [_parse_number(text) for found in told for text in found]


def _read_numbers(fields: Mapping[str, Any], output: str, config: ScoreConfig) -> list[float]:
    """The metric from one run's output, or its time."""
    if config.json_path is not None:
        value = _follow_path(_last_json(output), config.json_path)
        return [
            _parse_number(item) for item in (value if isinstance(value, list) else [value])[:_MOST_SAMPLES]
        ]
    return [_parse_number(fields.get("wall_s")) * 1e3]


def _parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ScoreError(f"{str(value)[:60]!r} is not a number")
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise ScoreError(f"{str(value)[:60]!r} is not a number") from error


def _last_json(output: str) -> Any:
    """The last line that is a JSON object, or the whole output."""
    for text in (output, *reversed(output.splitlines())):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    raise ScoreError("its output has no JSON object")


def _follow_path(found: Any, path: str) -> Any:
    for name in re.findall(r"[A-Za-z0-9_]+", path):
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            raise ScoreError(f"its JSON has no {path}")
    return found


def _relative_scatter(samples: Sequence[float]) -> float:
    if len(samples) == 1:
        return 0.0
    first, _, third = quantiles(samples, n=4, method="inclusive")
    return (third - first) / 2 / median(samples)
