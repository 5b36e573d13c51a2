"""People: what they put into the inbox and the configuration file, and how they let paused runs go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from daemon.command_models import (
    Approve,
    Calibrate,
    Cancel,
    Command,
    Compact,
    ExperienceEntry,
    Forget,
    Fork,
    Learn,
    Pause,
    Propose,
    Resume,
    Set,
)
from daemon.config import FILE_NAME
from daemon.experience_files import apply_experience_command
from daemon.home_paths import inbox_folder
from daemon.inbox import put_command
from state.log import EventLog
from state.model import DeviceCalibration, PauseCause, RunStatus
from state.system import SystemState
from tests.support.simulation.machine import Machine
from tests.support.simulation.scenario import Deed, Scenario, submission

NOBODY = "silu-000000"
"""A run that is not there."""

NONSENSE = (b"{", b"[]", b'{"verb": 1}', b"\xff\xfe")
WRONG = (b'{"verb": "jump"}', b'{"verb": "pause"}', b'{"verb": "set", "run": "a", "settings": {}}')
"""Files that are no commands at all, and commands that are refused."""

EDITS = (
    "",
    "[daemon]\nevaluations = {n}\nproposals = {n}\n",
    "[daemon]\nruns = {n}\n[run.search]\nrounds = {n}\n",
    "[run.search]\nbeam = {n}\nplans = {n}\n",
    "[run.search]\nround_seconds = {n}.5\n",
)
FAULTY = ("[run\n", "[run.search]\nbeam = -{n}\n", "[daemon]\nevaluation = {n}\n")
"""What a configuration file may come to say, and what is refused."""

FAULTY_SHARE = 0.3


def id_of(number: int) -> str:
    """Return the id of the command that is given as number `number`, from 1 on."""
    return f"{number:08d}"


class People:
    """Whoever steers the runs of a world; `note` is told what they do."""

    def __init__(self, world: Scenario, machine: Machine, note: Callable[[str], None]) -> None:
        self._world = world
        self._machine = machine
        self._note = note
        self._given = 0
        self._last = ("", b"")
        self.awaited: set[str] = set()
        """The commands that the log must answer."""

    def act(self, deed: Deed, event_log: EventLog) -> None:
        """Do what a deed says."""
        draw = random.Random(deed.draw)
        match deed.what:
            case "submit":
                self._drop(submission(self._world, deed.whom))
            case "edit":
                self._edit(draw)
            case "nonsense":
                self._give(draw.choice((*NONSENSE, *WRONG)))
            case "again":
                self._repeat(draw)
            case "no run":
                for command in _of_no_run(draw):
                    self._drop(command)
            case verb:
                self._steer(verb, deed.whom, draw, event_log)

    def let_go_on(self, event_log: EventLog) -> None:
        """Let runs go on that wait for a person."""
        for run in event_log.active_runs():
            state = event_log.run_state(run)
            if state.status is RunStatus.PAUSED and state.pause_cause is not PauseCause.SPACE:
                self._drop(Approve(run=run) if state.needs_approval else Resume(run=run))

    def _steer(self, verb: str, whom: int, draw: random.Random, event_log: EventLog) -> None:
        runs = event_log.run_ids()
        if runs:
            run = runs[-1] if draw.random() < 0.3 else runs[whom % len(runs)]
            known = {command.verb: command for command in _steering(run, event_log.run_seq(run), draw)}
            self._drop(known[verb])

    def _edit(self, draw: random.Random) -> None:
        text = draw.choice(FAULTY if draw.random() < FAULTY_SHARE else EDITS).format(n=draw.randint(1, 4))
        self._note(f"edited the configuration: {text!r}")
        (self._machine.home / FILE_NAME).write_text(text)

    def _repeat(self, draw: random.Random) -> None:
        """Put the last command there once more, or another one under its id."""
        id_, data = self._last
        if id_:
            self._note(f"gave {id_} again")
            self._place(id_, draw.choice((data, draw.choice(WRONG))))

    def _drop(self, command: Command) -> None:
        id_ = self._next()
        self._note(f"asked to {command.verb} {getattr(command, 'run', '')}, as {id_}")
        self.awaited.add(put_command(self._machine.home, command, id_=id_))
        self._last = (id_, command.model_dump_json().encode())

    def _give(self, data: bytes) -> None:
        id_ = self._next()
        self._note(f"gave {data!r} as {id_}")
        self._place(id_, data)
        if data in WRONG:
            self.awaited.add(id_)

    def _next(self) -> str:
        self._given += 1
        return id_of(self._given)

    def _place(self, id_: str, data: bytes) -> None:
        box = inbox_folder(self._machine.home)
        part = box / f".{id_}.part"
        part.write_bytes(data)
        part.rename(box / f"{id_}.json")


def _of_no_run(draw: random.Random) -> Sequence[Command]:
    """Return what is asked of a run that is not there, or what later runs may use: advice, a calibration."""
    if draw.random() < 0.5:
        return [draw.choice(_steering(NOBODY, 1, draw))]
    learn = Learn(file="advice.json", rewrites=(ExperienceEntry(summary=f"advice {draw.randint(1, 3)}"),))
    _, _, said = apply_experience_command(learn, SystemState())
    found = DeviceCalibration(
        name="trn2@2.33",
        target="trn2",
        host="host",
        toolchain="",
        model_version=1,
        constants={"issue_window": 6},
    )
    return [learn, Forget(ids=said["learnt"]), Calibrate(calibration=found), Compact()]


def _steering(run: str, last: int, draw: random.Random) -> Sequence[Command]:
    """Return what may be asked of a run whose last event is number `last`."""
    source = f"TILE_M = {draw.randint(1, 500)}\nTILE_N = {draw.randint(1, 7)}\n"
    settings = {"search.rounds": draw.randint(1, 4), "search.beam": draw.randint(1, 2)}
    others = draw.choice(({}, {}, {"search.plans": 2}, {"target": "trn1"}))
    return (
        Pause(run=run),
        Resume(run=run),
        Cancel(run=run),
        Approve(run=run),
        Set(run=run, settings=settings),
        Propose(run=run, source=source),
        Fork(run=run, seq=draw.randint(1, last), rewind=draw.random() < 0.5, settings=others),
    )
