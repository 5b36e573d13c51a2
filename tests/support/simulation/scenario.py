"""What a seed says of a world: the runs, what people do and when, and how much goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from daemon.command_models import Submit
from daemon.config import DaemonConfig
from state.model import RunConfig, SearchConfig
from tests.support import fakes

FAITHFUL_SHARE = 0.4
"""Worlds in which all that goes wrong must leave no trace: they are compared with an undisturbed twin."""

SECONDS = 40.0
"""Within how many seconds people do what they do, and things happen to the machine."""


MOST_PREDICTIONS = 5
"""Of a run that looks ahead; the constants of a kernel give one more."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that is done `at` a time; whom it concerns follows from the draws."""

    at: float
    what: str
    whom: int
    draw: int


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely things go wrong: per place where the process can be killed, and per commit."""

    kill: float = 0.0
    disk: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world. `mishaps` bounds how often process and disk fail, so that it comes to an end."""

    seed: int
    faithful: bool
    runs: tuple[RunConfig, ...]
    kernels: tuple[str, ...]
    deeds: tuple[Deed, ...]
    daemon: DaemonConfig
    odds: Odds
    mishaps: int
    fresh: bool
    """Whether there is no home yet."""

    @property
    def has_prices(self) -> bool:
        """Whether answers cost money."""
        return not self.faithful and self.seed % 3 == 0


def scenario(seed: int) -> Scenario:
    """Return the world of a seed."""
    chosen = random.Random(f"scenario {seed}")
    faithful = chosen.random() < FAITHFUL_SHARE
    count = chosen.choice((1, 1, 1, 2, 2, 3))
    return Scenario(
        seed=seed,
        faithful=faithful,
        runs=tuple(_config(chosen, faithful) for _ in range(count)),
        kernels=tuple(_kernel(chosen, number if faithful else 0) for number in range(count)),
        deeds=_deeds(chosen, faithful, count),
        daemon=DaemonConfig(
            evaluations=chosen.choice((1, 2, 4)),
            proposals=chosen.choice((1, 2, 4)),
            runs=chosen.choice((1, 2, 16)),
            evaluation_seconds=10,
            grace_seconds=chosen.choice((0, 1, 5)),
        ),
        odds=Odds(kill=chosen.choice((0, 0.005, 0.02)), disk=chosen.choice((0, 0.01, 0.03))),
        mishaps=chosen.choice((2, 5, 10)),
        fresh=chosen.random() < 0.25,
    )


BY_PEOPLE = {
    "pause": 3,
    "resume": 3,
    "cancel": 1,
    "set": 2,
    "fork": 6,
    "approve": 1,
    "propose": 4,
    "edit": 2,
    "no run": 1,
    "again": 1,
    "nonsense": 1,
}
"""What people do, and how often against each other."""

TO_THE_MACHINE = ("full disk", "clock forward", "clock back", "clock to midnight")
"""What happens to any machine, and must leave no trace."""


def _deeds(chosen: random.Random, faithful: bool, count: int) -> tuple[Deed, ...]:
    submits = [Deed(chosen.uniform(0, 10), "submit", number, 0) for number in range(count)]
    people = [] if faithful else chosen.choices(list(BY_PEOPLE), BY_PEOPLE.values(), k=chosen.randrange(9))
    machine = chosen.choices(TO_THE_MACHINE, k=chosen.choice((0, 0, 1, 2)))
    others = [
        Deed(chosen.uniform(1, SECONDS), what, chosen.randrange(100), chosen.getrandbits(32))
        for what in (*people, *machine)
    ]
    return tuple(sorted((*submits, *others), key=lambda deed: deed.at))


def _config(chosen: random.Random, faithful: bool) -> RunConfig:
    search = SearchConfig(
        beam=chosen.randint(1, 2),
        plans=chosen.randint(1, 2),
        rounds=chosen.choice((1, 1, 1, 2, 2, 3)),
        explorers=chosen.randint(0, 1),
        repairs=chosen.randint(0, 1),
        explorer_depth=1,
        within_percent=0,
        simplify=False,  # the scripted proposer does not; so it was before runs could
        round_seconds=None if faithful else chosen.choice((None, 3.0, 8.0)),
        lookahead_predictions=chosen.choice((0, 0, 0, MOST_PREDICTIONS)),
    )
    points = ("before_round", "new_best", "completion")
    return fakes.CONFIG.model_copy(
        update={
            "seed": chosen.getrandbits(32),
            "search": search,
            "approval": tuple(point for point in points if chosen.random() < 0.1),
            "cap_usd": chosen.choice((0.125, 4.0)),
        }
    )


def _kernel(chosen: random.Random, kind: int) -> str:
    """Return a kernel to start from; runs of other kinds never find its verdicts among the known ones."""
    sizes = [2 ** chosen.randint(3, 8) for _ in range(3)]
    return "kind = {}\nTILE_M = {}\nTILE_N = {}\nTILE_K = {}\n".format(kind, *sizes)


@lru_cache(maxsize=1)
def _files() -> dict[str, bytes]:
    return fakes.create_submission().files


def submission(world: Scenario, number: int) -> Submit:
    """Return the command that starts a world's run of this number."""
    return Submit.model_construct(
        verb="submit", config=world.runs[number], files=_files(), kernel=world.kernels[number]
    )
