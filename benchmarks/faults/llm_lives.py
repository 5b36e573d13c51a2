"""Lives of a daemon whose run asks a model over real sockets: a process each, killed at a crash point or not.

`Lives` is a process that has everything imported and forks one child per life. A child owns the home until
its run has ended, or dies by SIGKILL at the n-th hit of any crash point: before and after each commit, and
between a model's answer and its event.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_core.prompting import builtin_prompts
from agent_core.providers.retry import RetryPolicy
from agent_core.tools.lookup import collect_sections
from benchmarks.faults.llm_story import AMBITIOUS
from daemon.calls.llm_roles import RoleFactory
from daemon.command_models import Resume, run_id
from daemon.config import DaemonConfig
from daemon.home_owner import serve_runs
from daemon.inbox import inbox_folder, put_command
from daemon.process_logging import configure_logging
from daemon.stop_signal import StopSignal
from stability.breaker import BreakerPolicy
from state import crash
from state.log import EventLog
from state.model import LlmConfig, PauseCause, RoleForm, RunConfig, RunStatus, SearchConfig
from tests.support import constants_model, fakes
from tests.support.llm_server import LlmServer

ROOT = Path(__file__).resolve().parents[2]
CAP_USD = 3.0
SHARE_PERCENT = 0.45
"""Of the cap, for an ambitious session: enough for five turns."""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A wire format: the endpoint asked by it, the server's address for it, and how kernels are written."""

    endpoint: str
    address: str
    form: RoleForm = "question"
    is_ambitious: bool = False
    """Sessions submit several kernels, and may spend so little that some end before they do."""
    planner_form: RoleForm | None = None
    """With "loop", planners hold sessions too; the run is then a small one."""

    @property
    def name(self) -> str:
        """What the figures call it: the format, and how kernels are written."""
        if self.form == "question":
            return self.address
        planners = ", planners' too" if self.planner_form == "loop" else ""
        ambition = " of several kernels, with shares" if self.is_ambitious else ""
        return f"{self.address} sessions{ambition}{planners}"

    @property
    def model(self) -> str:
        """The model that is asked."""
        return f"{self.endpoint}/{AMBITIOUS if self.is_ambitious else 'constants'}"

    def url(self, server: LlmServer) -> str:
        """Return where the server takes this format."""
        found: str = getattr(server, self.address)
        return found


FORMATS = {
    wire.name: wire
    for wire in (
        WireFormat("local", "openai"),
        WireFormat("anthropic", "anthropic"),
        WireFormat("local", "openai", "loop"),
        WireFormat("anthropic", "anthropic", "loop"),
        WireFormat("local", "openai", "loop", is_ambitious=True),
        WireFormat("anthropic", "anthropic", "loop", is_ambitious=True),
        WireFormat("local", "openai", "loop", planner_form="loop"),
        WireFormat("anthropic", "anthropic", "loop", planner_form="loop"),
    )
}

PRELOADED = (
    "agent_core.roles.llm",
    "agent_core.providers.openai",
    "agent_core.providers.anthropic",
    "openai",
    "anthropic",
    "genai_prices",
    "remote.local",
)
"""Imported here so that no life does it again; none of them opens a database."""

QUICK = RetryPolicy(tries=20, first_seconds=0.002, longest_seconds=0.01)
UNBROKEN = BreakerPolicy(failures=1000)
"""Faults come by question here, and say nothing of the endpoint."""


def create_config(wire: WireFormat, seed: int = 3, *, rounds: int = 1) -> RunConfig:
    """Return the configuration of the run: every role is asked, and repairs too but in a small run."""
    is_small = wire.planner_form == "loop"
    return RunConfig(
        problem="silu",
        size="reduced",
        evaluator="fake",
        planner=(wire.endpoint,),
        seed=seed,
        cap_usd=CAP_USD,
        llm=LlmConfig(
            models=(wire.model,),
            max_output_tokens=1000,
            form=wire.form,
            planner_form=wire.planner_form,
            turns=8,
            session_percent=SHARE_PERCENT if wire.is_ambitious else 100,
        ),
        search=SearchConfig(
            beam=1,
            plans=2,
            implementations=1 if is_small else 2,
            rounds=rounds,
            explorers=0,
            repairs=0 if is_small else 1,
            within_percent=0,
        ),
    )


def submit_run(home: Path, wire: WireFormat, seed: int = 3, *, rounds: int = 1) -> str:
    """Submit the run; return its id."""
    submission = fakes.create_submission(create_config(wire, seed, rounds=rounds), constants_model.KERNEL)
    return run_id(put_command(home, submission), "silu")


class Lives:
    """The process that forks them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.llm_lives"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live_once(
        self, home: Path, run: str, wire: WireFormat, server: LlmServer, *, crash_at: str | None = None
    ) -> int:
        """Let one life own `home`; return its exit status, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"endpoint": wire.endpoint, "model": wire.model, "url": wire.url(server)}
        job = {"home": str(home), "run": run, "crash": crash_at, **asked}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


async def _host_run(event_log: EventLog, run: str, *, endpoint: str, model: str, url: str) -> None:
    settings = DaemonConfig.model_validate(
        {
            "evaluations": 2,
            "proposals": 2,
            "grace_seconds": 0.0,
            "prices": (f"{model}=3/0.3/15",),
            endpoint: {"base_url": url, "calls": 4},
        }
    )
    roles = RoleFactory(event_log, settings, env={}, retries=QUICK, breakers=UNBROKEN)
    stop = StopSignal()
    work = serve_runs(event_log, settings, stop=stop, workers=fakes.fake_workers(), roles=roles)
    hosting = asyncio.create_task(work)
    while not hosting.done() and not fakes.has_ended(event_log, run):
        if _waits_for_person(event_log, run):
            put_command(event_log.home, Resume(run=run))
        await asyncio.sleep(0.002)
    stop.request()
    await hosting


def _waits_for_person(event_log: EventLog, run: str) -> bool:
    """Whether the endpoint refuses everything and nobody has said yet that it is mended."""
    if event_log.run_seq(run) == 0 or any(inbox_folder(event_log.home).glob("*.json")):
        return False
    state = event_log.run_state(run)
    return state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.PROVIDER


def _live_once(job: dict[str, Any]) -> int:
    crash._trigger = crash.parse_trigger(job["crash"])  # noqa: SLF001 - as the environment would at a start
    try:
        with EventLog.open(Path(job["home"])) as event_log:
            asked = {name: job[name] for name in ("endpoint", "model", "url")}
            asyncio.run(_host_run(event_log, job["run"], **asked))
    except BaseException:  # noqa: BLE001 - a child must end here, whatever happened
        traceback.print_exc()
        return 1
    return 0


def fork_lives() -> None:
    """Fork a child for each job on stdin; answer with its exit status."""
    configure_logging("error")  # to stderr: stdout is for the answers alone
    for module in PRELOADED:
        import_module(module)
    fakes.create_submission(create_config(FORMATS["openai"]))
    own = builtin_prompts()  # read once: all lives are told the same, whatever is edited meanwhile
    collect_sections(own, RunConfig().target)  # what `lookup` reads, slowly
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_live_once(json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    fork_lives()
