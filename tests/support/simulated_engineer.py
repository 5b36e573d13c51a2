"""A simulated engineer: a scripted model that makes the mistakes that models make, and mends them when told.

Its ideas are rewrites that the engine can do, so a draft without mistakes is right; whether it is faster, the
judge says. Into each draft it puts a number of mistakes drawn from a Poisson distribution. Told of a refusal,
it goes to each line that is named, or looks for the cause where none is, and mends it with known odds; after
three failed tries it gives the draft up. What `check` predicts to be no faster it does not evaluate.
Everything follows from a seed.

Two figures fix its skill, both of frontier models on Trainium kernels (NKI-Agent, arXiv 2607.04395): 6 % of
kernels pass in one shot, 77.3 % with tools that compile and verify. How mistakes divide into kinds, and how
often a call is malformed, nobody has published; these are assumptions.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.support.role_requests import fenced_block

ONE_SHOT, WITH_TOOLS = 0.06, 0.773
PATIENCE = 3
"""Tries at one mistake before the engineer gives a draft up."""
NEEDED_GAIN = 1.02
"""What is worth a submission."""


@dataclass(frozen=True, slots=True)
class Skill:
    """How good the engineer is.

    `mistakes` is their mean number in a draft, `mends` the odds of one try at one. `slips` is the share of
    calls and answers that are malformed at first.
    """

    mistakes: float
    mends: float
    slips: float = 0.05

    @classmethod
    def from_rates(cls, one_shot: float = ONE_SHOT, with_tools: float = WITH_TOOLS) -> Skill:
        """Return the skill that gives these shares of correct drafts, with `PATIENCE` tries at a mistake.

        A draft is right at once with exp(-mistakes); with tools, if none of its mistakes outlasts all tries.
        """
        mistakes = -math.log(one_shot)
        outlasts = -math.log(with_tools) / mistakes
        return cls(mistakes=mistakes, mends=1 - outlasts ** (1 / PATIENCE))


def _replace(pattern: str, text: str) -> Callable[[str], str]:
    return lambda line: re.sub(pattern, text, line, count=1)


def _swap_shape(line: str) -> str:
    return re.sub(r"nl\.ndarray\(\((\w+), (\w+)\)", r"nl.ndarray((\2, \1)", line, count=1)


_KINDS: tuple[tuple[str, int, tuple[Callable[[str], str], ...]], ...] = (
    (
        "wrong argument name",
        25,
        (
            _replace(r"\bdst=", "out="),
            _replace(r"\bdata1=", "lhs="),
            _replace(r"\bdata=", "input="),
            _replace(r"\bstationary=", "lhsT="),
            _replace(r"\boperand0=", "scalar="),
        ),
    ),
    (
        "name of elsewhere",
        25,
        (
            _replace(r"nisa\.dma_copy\(", "nl.load_store("),
            _replace(r"nisa\.tensor_copy\(", "nisa.copy("),
            _replace(r"nisa\.nc_matmul\(", "nl.dot("),
            _replace(r"nisa\.activation\(", "nl.activation("),
            _replace(r"nisa\.tensor_scalar\(", "nisa.tensor_scaler("),
            _replace(r"nisa\.tensor_tensor\(", "nl.tensor_tensor("),
        ),
    ),
    (
        "shape",
        20,
        (
            _swap_shape,
            _replace(r"\(TILE_M, ", "(2 * TILE_M, "),
            _replace(r"\(128, ", "(256, "),
            _replace(r"axis=1", "axis=0"),
        ),
    ),
    ("forgotten accumulate", 10, (_replace(r"nisa\.nc_matmul\(", "nisa.nc_matmul(accumulate=False, "),)),
    (
        "wrong operator",
        10,
        (_replace(r"\bop0?=nl\.add", "op=nl.subtract"), _replace(r"=nl\.multiply", "=nl.add")),
    ),
    ("lost tail", 7, (_replace(r"range\((\w+) // ", r"range((\1 - 1) // "),)),
    ("cheat: work skipped", 3, (_replace(r"_range\(.+\):", "_range(1):"),)),
)
"""Kinds of mistakes, how often in a hundred, and what each does to a line."""


@dataclass
class Draft:
    """A kernel with mistakes in it, each in a line of its own: line number -> the right line."""

    rows: list[str]
    mistakes: dict[int, str] = field(default_factory=dict)
    tries: Counter[int] = field(default_factory=Counter)

    @property
    def source(self) -> str:
        return "\n".join(self.rows)

    def find_mistakes(self, lines: Sequence[int]) -> list[int]:
        """Return the mistakes that a refusal is about: the nearest to its first line, those in its others.

        Without a line it is the first mistake.
        """
        if not self.mistakes:
            return []
        first = lines[0] if lines else 0
        nearest = min(self.mistakes, key=lambda at: (abs(at - first), at))
        return list(dict.fromkeys([nearest, *(at for at in lines[1:] if at in self.mistakes)]))


def write_draft(good: str, skill: Skill, luck: Random) -> Draft:
    """Return a good kernel as the engineer writes it at first."""
    draft = Draft(good.split("\n"))
    for _ in range(_poisson(skill.mistakes, luck)):
        spoil_line(draft, luck)
    return draft


def spoil_line(draft: Draft, luck: Random) -> None:
    """Put one more mistake into a draft, in a line that has none."""
    weights = [weight for _, weight, _ in _KINDS]
    for _ in range(20):
        _, _, ways = luck.choices(_KINDS, weights)[0]
        way = luck.choice(ways)
        spoilt = [
            (at, text)
            for at, row in enumerate(draft.rows)
            if at not in draft.mistakes and not row.lstrip().startswith("#") and (text := way(row)) != row
        ]
        if spoilt:
            at, text = luck.choice(spoilt)
            draft.mistakes[at], draft.rows[at] = draft.rows[at], text
            return


def _poisson(mean: float, luck: Random) -> int:
    count, product = 0, luck.random()
    while product > math.exp(-mean):
        count, product = count + 1, product * luck.random()
    return count


_LINE = re.compile(r"^(?:line:? )(\d+)", re.MULTILINE)
_HEAD = re.compile(r"^(v\d+): (keeps|correct|\w+)", re.MULTILINE)
_GAIN = re.compile(r"([\d.]+) times as fast as v0")

Call = tuple[str, str]
"""A tool's name and its arguments, as JSON or as what a model took for JSON."""


@dataclass
class Engineer:
    """Works on one kernel. `ideas` are right kernels, most of them no faster; each is taken up once."""

    ideas: Sequence[str]
    skill: Skill
    luck: Random
    taken: int = 0
    drafts: int = 0
    right_at_once: int = 0
    _draft: Draft | None = None

    def has_ideas(self) -> bool:
        return self.taken < len(self.ideas)

    def _begin(self) -> Draft:
        draft = write_draft(self.ideas[self.taken], self.skill, self.luck)
        self.taken += 1
        self.drafts += 1
        self.right_at_once += not draft.mistakes
        self._draft = draft
        return draft

    def mend(self, draft: Draft, told: str) -> bool:
        """Try to mend all that a refusal is about, once each; False if the draft is given up."""
        places = draft.find_mistakes([int(line) - 1 for line in _LINE.findall(told)])
        if not places or any(draft.tries[at] >= PATIENCE for at in places):
            return False
        for at in places:
            draft.tries[at] += 1
            if self.luck.random() < self.skill.mends:
                draft.rows[at] = draft.mistakes.pop(at)
            else:  # a change that does not help
                draft.rows[at] = f"{draft.rows[at].partition('  # ')[0]}  # try {draft.tries[at]}"
        return True

    # --- questions ---------------------------------------------------------------------------------

    def plan(self) -> str:
        """Answer the planner's question."""
        said = self._describe_idea(self.taken + 1)
        return self._slip(f"The kernel waits for its loads.\n\n{fenced_block(said)}")

    def _describe_idea(self, number: int) -> dict[str, object]:
        return {
            "technique": "hoist",
            "site": "the loops of the kernel",
            "title": f"idea {number}",
            "bottleneck": "dma",
            "steps": [f"carry out idea {number}: move less, and wait less for what is moved"],
            "prediction": {"speedup": 1.2, "counter": None, "reason": "fewer bytes are moved"},
            "risk": "it may not fit",
        }

    def write(self) -> str:
        """Answer the executor's question: the whole file."""
        return self._slip(f"Done as planned.\n{fenced_block(self._begin().source, 'python')}")

    def repair(self, told: str) -> str:
        """Answer the repairer's question with the mended file; at its wits' end, with the same mistake."""
        assert self._draft is not None
        if not self.mend(self._draft, told):
            self._draft.rows.append(f"# looked at again, {len(self._draft.rows)}")
        return self._slip(f"The cause is mended.\n{fenced_block(self._draft.source, 'python')}")

    def answer_again(self, answer: str) -> str:
        """Answer a question whose answer before could not be used."""
        return answer

    def _slip(self, answer: str) -> str:
        self.last_answer = answer
        return "I would do it as follows." if self.luck.random() < self.skill.slips else answer

    # --- sessions ----------------------------------------------------------------------------------

    def read_and_plan(self, most: int) -> Generator[Call, str, None]:
        """Yield the calls of a planner's session, which submits up to `most` plans."""
        yield from self._say("profile", source="v0")
        yield from self._say("what_if", source="v0")
        left = len(self.ideas) - self.taken
        plans = [self._describe_idea(self.taken + 1 + at) for at in range(min(most, left))]
        yield from self._say("submit_plans", plans=plans)

    def work(self) -> Generator[Call, str, None]:
        """Yield the calls of a session, one a turn; what each yields is its result."""
        yield from self._say("profile", source="v0")
        while self.has_ideas():
            draft = self._begin()
            told = yield from self._say("check", source=draft.source)
            gain = yield from self._drive(draft, told)
            if gain is None:
                yield from self._say("give_up", reason="the kernel cannot be mended")
                return
            if gain[1] >= NEEDED_GAIN:
                yield from self._say("submit", source=gain[0], title=f"idea {self.taken}")
                return
        yield from self._say("give_up", reason="no idea is left")

    def _drive(self, draft: Draft, told: str) -> Generator[Call, str, tuple[str, float] | None]:
        """Return a draft's version and gain once it is correct; None if it is given up."""
        while True:
            head, gain = _HEAD.search(told), _GAIN.search(told)
            if head is None:
                return None
            version = head[1]
            if gain is not None and (head[2] != "keeps" or float(gain[1]) < NEEDED_GAIN):
                return version, float(gain[1])
            if head[2] == "keeps":
                told = yield from self._say("evaluate", source=version)
                continue
            before = list(draft.rows)
            if not self.mend(draft, told):
                return None
            told = yield from self._say(
                "evaluate" if _is_silent(told) else "check", **_edit(version, before, draft)
            )

    def _say(self, tool: str, **said: object) -> Generator[Call, str, str]:
        """Call a tool; a malformed call is made again as the refusal says."""
        if self.luck.random() < self.skill.slips:
            yield self.luck.choice(list(_slips(tool, said)))
        return (yield tool, json.dumps(said))


def _is_silent(told: str) -> bool:
    return "stage numerics" in told or ": incorrect" in told


def _edit(version: str, before: Sequence[str], draft: Draft) -> dict[str, object]:
    """Return the arguments that send a draft: edits of the version before, if their lines are unique."""
    changed = [(row, new) for row, new in zip(before, draft.rows, strict=True) if row != new]
    whole = "\n".join(before)
    if changed and all(whole.count(row) == 1 for row, _ in changed):
        return {"source": version, "edits": [{"find": row, "replace": new} for row, new in changed]}
    return {"source": draft.source}


def _slips(tool: str, said: dict[str, object]) -> Iterator[Call]:
    """Yield the ways in which models spoil a call: misspelt names, broken JSON, a version that is none."""
    first, *rest = said.items()
    yield tool, json.dumps({f"{first[0]}_": first[1], **dict(rest)})
    yield tool, json.dumps(said)[:-1]
    if "source" in said:
        yield tool, json.dumps({**said, "source": "v99"})
