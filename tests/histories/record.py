"""Make the recorded runs anew, with what is kept of each: after a change that is meant to change them.

Before that, move the old ones to `runs/earlier/`: logs of every version are folded for ever.

    .venv/bin/python -m tests.histories.record              # all of them, a few minutes
    .venv/bin/python -m tests.histories.record knobs        # one
    .venv/bin/python -m tests.histories.record --into DIR   # elsewhere, to be compared

Four runs are real ones by the built-in proposer and one tunes a workload, all on the simulator. Two have
their kernels from a scripted model, four from the scripted proposer, for a fake judge. Of these, three are
from simulated worlds: people pause, fork, cancel and propose, hosts and the process fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import seeds
from agent_core.providers.completion import CompletionRequest
from agent_core.providers.failures import Failure, FailureKind
from daemon.command_models import run_id
from daemon.config import FILE_NAME, DaemonConfig
from daemon.home_owner import create_workers
from daemon.inbox import put_command
from daemon.process_logging import configure_logging
from remote.errors import InfrastructureError
from remote.evaluator import BlobReader, EvaluationAnswer
from stability.breaker import BreakerPolicy
from state.archive import archive_run
from state.log import EventLog
from state.model import EvaluationRequest, RunConfig, SearchConfig, digest_of
from tests.daemon.calls import fake_models
from tests.histories.history import RUNS, digest_report, load, summarize_history
from tests.support import fakes
from tests.support.cluttered import CLUTTERED
from tests.support.simulation.running import Simulation
from tests.support.simulation.scenario import scenario
from tests.support.tuning_jobs import WORKLOAD

ROOT = Path(__file__).parents[2]

Made = tuple[Path, str]
"""A home, and the run in it."""


# --- real runs -----------------------------------------------------------------------------------------

ONE_BY_ONE = ("--set", "daemon.evaluations=1", "--set", "daemon.proposals=1")


def list_settings(plans: int, predictions: int) -> tuple[str, ...]:
    return (
        *("--set", f"run.search.plans={plans}"),
        *("--set", f"run.search.lookahead_predictions={predictions}"),
    )


def by_command(folder: Path, *arguments: str, simplify: bool = False) -> Made:
    """Carry out `agentctl run` or `tune` at the reduced size, for one round.

    Whether winners are simplified is in the configuration file: a flag would be noted in the run.
    """
    home = folder / "home"
    home.mkdir(mode=0o700)
    (home / FILE_NAME).write_text(f"[run.search]\nsimplify = {str(simplify).lower()}\n")
    command = [sys.executable, "-m", "agentctl", "--home", str(home), *arguments, *ONE_BY_ONE]
    told = subprocess.run(
        [*command, "--size", "reduced", "--rounds", "1", "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return home, json.loads(told.stdout)["id"]


def builtin(folder: Path) -> Made:
    return by_command(folder, "run", "--problem", "silu", "--seed", "7")


def builtin_trn1(folder: Path) -> Made:
    return by_command(
        folder, "run", "--problem", "silu", "--seed", "11", "--target", "trn1", *list_settings(3, 24)
    )


def simplified(folder: Path) -> Made:
    """From a kernel that somebody else wrote: what is left of its clutter goes at the end."""
    kernel = folder / "kernel.py"
    kernel.write_text(CLUTTERED)
    arguments = ("run", "--problem", "silu", "--kernel", str(kernel), "--seed", "3")
    return by_command(folder, *arguments, *list_settings(2, 24), "--set", "run.starts=kernel", simplify=True)


def knobs(folder: Path) -> Made:
    workload = folder / "product.py"
    workload.write_text(WORKLOAD.replace("TARGET_MFU = 0.25", "TARGET_MFU = 1"))
    return by_command(folder, "tune", str(workload), "--seed", "3", *list_settings(4, 64))


def given(folder: Path) -> Made:
    """The second of two runs in a home: it is given what paid in the first."""
    search = SearchConfig(beam=2, plans=3, rounds=1, lookahead_predictions=24, simplify=False)
    home, runs = folder / "home", []
    for number in (1, 2):
        config = RunConfig(problem="silu", size="reduced", seed=number, search=search)
        asked = fakes.create_submission(config, seeds.load_problem("silu").kernel)
        runs.append(run_id(put_command(home, asked, id_=f"000{number}-a"), config.problem))
        fakes.finish_runs(home, runs[-1], workers=create_workers(home, DaemonConfig(evaluations=1)))
    return home, runs[-1]


# --- runs of fakes -------------------------------------------------------------------------------------


def by_model(folder: Path, config: RunConfig) -> Made:
    """Have a scripted model write the kernels, some of which need a repair.

    Each question fails once, and some are refused.
    """

    def script(request: CompletionRequest, delivery: int) -> str | Failure:
        if delivery == 1:
            return Failure(kind=FailureKind.OVERLOADED, message="as the script says")
        if digest_of("".join(part.text for part in request.case).encode()).startswith(("0", "1")):
            return Failure(kind=FailureKind.REFUSED, message="as the script says")
        return fake_models.answer_request(request, delivery)

    with EventLog.open(folder / "home") as log:
        provider = fake_models.FakeProvider(script=script)
        patient = BreakerPolicy(failures=1000)
        return folder / "home", asyncio.run(fake_models.finish_run(log, provider, config, breakers=patient))


def model(folder: Path) -> Made:
    return by_model(folder, fake_models.CONFIG)


def budget(folder: Path) -> Made:
    return by_model(folder, fake_models.CONFIG.model_copy(update={"cap_usd": 0.15}))


class Judge(fakes.FakeEvaluator):
    """Finds some kernels wrong only when it compares more, and never judges some."""

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        if request.source.startswith(("4", "5")):
            raise InfrastructureError("bad_host", "the host never answers this", retryable=False)
        return await super().evaluate(request, blobs)


def refuted(folder: Path) -> Made:
    """Kernels compete by another strategy, for a judge that has its moods."""
    search = SearchConfig(
        strategy="evolution", beam=2, plans=2, rounds=3, explorers=1, repairs=1, within_percent=0,
        simplify=False,
    )  # fmt: skip
    config = fakes.CONFIG.model_copy(update={"seed": 2, "search": search})
    run = fakes.submit_run(folder / "home", config, id_="0001-a")
    fakes.finish_runs(folder / "home", run, workers=fakes.fake_workers(Judge(late=fakes.LATE)))
    return folder / "home", run


def record_simulated(folder: Path, seed: int, run: str) -> Made:
    world = Simulation(scenario(seed), folder, lambda line: None)
    world.run()
    return world._machine.home, run


def steered(folder: Path) -> Made:
    """Paused and resumed, approved, a person's kernel, repairs, late kernels, some discarded or reverted."""
    return record_simulated(folder, 23, "silu-ae5ce1")


def forked(folder: Path) -> Made:
    """A fork of a fork with changed settings and a judge that is lost now and then."""
    return record_simulated(folder, 56, "silu-50a9b9")


def cancelled(folder: Path) -> Made:
    """Killed and delivered again, paused for want of space, and cancelled."""
    return record_simulated(folder, 12, "silu-ae5ce1")


RECIPES: dict[str, Callable[[Path], Made]] = {
    recipe.__name__: recipe
    for recipe in (
        builtin, builtin_trn1, simplified, given, knobs, model, budget, refuted, steered, forked, cancelled,
    )
}  # fmt: skip


IN_NO_ORDER = frozenset({"budget"})
"""Runs that do not end alike each time: for which question no money is left follows from who asks first."""


def record_run(name: str, into: Path) -> Path:
    """Make a run; return its archive in the folder `into`."""
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        home, run = RECIPES[name](Path(folder))
        path = archive_run(home, run, into / f"{name}.jsonl.gz", replace=True).path
    path.chmod(0o644)
    return path


def write_result(path: Path) -> None:
    """Write down beside an archive what is kept of its run."""
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        kept = summarize_history(load(path)) | {"report": digest_report(path, Path(folder) / "home")}
    path.with_name(path.name.replace(".jsonl.gz", ".json")).write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; default: all")
    parser.add_argument("--into", type=Path, default=RUNS, metavar="DIR")
    asked = parser.parse_args()
    configure_logging("error")
    asked.into.mkdir(parents=True, exist_ok=True)
    for name in asked.names or RECIPES:
        path = record_run(name, asked.into)
        write_result(path)
        print(f"{name}: {len(load(path).events)} events, {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
