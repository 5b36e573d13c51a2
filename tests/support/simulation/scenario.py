"""What a seed says of a world: the runs, what people do and when, and how much goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from daemon.config import DaemonConfig
from daemon.verbs import Approve, Cancel, Command, Fork, Pause, Propose, Resume, Set, Submit
from state.model import RunConfig, SearchConfig
from tests.daemon import fakes

FAITHFUL_SHARE = 0.4
"""Worlds in which all that goes wrong must leave no trace: they are compared with an undisturbed twin."""

SECONDS = 90.0
"""Within how many seconds people do what they do."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that a person does `at` a time; whom it concerns follows from the draws."""

    at: float
    verb: str
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

    @property
    def priced(self) -> bool:
        """Whether answers cost money."""
        return not self.faithful and self.seed % 3 == 0


def scenario(seed: int) -> Scenario:
    """Return the world of a seed."""
    chosen = random.Random(f"scenario {seed}")
    faithful = chosen.random() < FAITHFUL_SHARE
    count = chosen.choice((1, 1, 2, 3))
    submits = [Deed(chosen.uniform(0, 10), "submit", number, 0) for number in range(count)]
    deeds = () if faithful else tuple(_deed(chosen) for _ in range(chosen.randrange(9)))
    return Scenario(
        seed=seed,
        faithful=faithful,
        runs=tuple(_config(chosen, faithful) for _ in range(count)),
        kernels=tuple(_kernel(chosen) for _ in range(count)),
        deeds=tuple(sorted((*submits, *deeds), key=lambda deed: deed.at)),
        daemon=DaemonConfig(
            evaluations=chosen.choice((1, 2, 4)),
            proposals=chosen.choice((1, 2, 4)),
            runs=chosen.choice((1, 2, 16)),
            evaluation_seconds=20,
            grace_seconds=chosen.choice((0, 1, 5)),
        ),
        odds=Odds(kill=chosen.choice((0, 0.005, 0.02)), disk=chosen.choice((0, 0.01, 0.03))),
        mishaps=chosen.choice((2, 5, 10)),
    )


VERBS = ("pause", "resume", "cancel", "set", "fork", "approve", "propose")
_WEIGHTS = (3, 3, 1, 2, 2, 1, 4)


def _deed(chosen: random.Random) -> Deed:
    (verb,) = chosen.choices(VERBS, _WEIGHTS)
    return Deed(chosen.uniform(1, SECONDS), verb, chosen.randrange(100), chosen.getrandbits(32))


def _config(chosen: random.Random, faithful: bool) -> RunConfig:
    search = SearchConfig(
        beam=chosen.randint(1, 2),
        plans=chosen.randint(1, 2),
        rounds=chosen.randint(1, 3),
        explorers=chosen.randint(0, 1),
        repairs=chosen.randint(0, 1),
        explorer_depth=1,
        within_percent=0,
        round_seconds=None if faithful else chosen.choice((None, 3.0, 8.0)),
    )
    points = ("before_round", "new_best", "completion")
    return fakes.CONFIG.model_copy(
        update={
            "seed": chosen.getrandbits(32),
            "search": search,
            "approval": tuple(point for point in points if chosen.random() < 0.1),
            "cap_usd": chosen.choice((0.5, 4.0)),
        }
    )


def _kernel(chosen: random.Random) -> str:
    sizes = [2 ** chosen.randint(3, 8) for _ in range(3)]
    return "TILE_M = {}\nTILE_N = {}\nTILE_K = {}\n".format(*sizes)


@lru_cache(maxsize=1)
def _files() -> dict[str, bytes]:
    return fakes.submission().files


def submission(world: Scenario, number: int) -> Submit:
    """Return the command that starts a world's run of this number."""
    return Submit.model_construct(
        verb="submit", config=world.runs[number], files=_files(), kernel=world.kernels[number]
    )


def steering(deed: Deed, run: str, last: int) -> Command:
    """Return the command that a deed is, when it concerns a run whose last event is number `last`."""
    match deed.verb:
        case "fork":
            return Fork(run=run, seq=1 + deed.draw % last, rewind=deed.draw % 2 == 0)
        case "propose":
            source = f"TILE_M = {1 + deed.draw % 500}\nTILE_N = {1 + deed.draw % 7}\n"
            return Propose(run=run, source=source)
        case "set":
            return Set(
                run=run, settings={"search.rounds": 1 + deed.draw % 4, "search.beam": 1 + deed.draw % 2}
            )
        case _:
            return {"pause": Pause, "resume": Resume, "cancel": Cancel, "approve": Approve}[deed.verb](
                run=run
            )
