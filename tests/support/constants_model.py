"""A model that knows one move: it halves and doubles constants, from the text that it is given.

It answers every role in the form that its prompt asks for. Some of its answers are wrong in form (told the
fault, it mends them), some of its kernels are refused by the fake judge (asked to repair, it does). Which,
follows from the question alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from state.model import digest_of

KERNEL = "TILE_M = 128\nTILE_N = 64\nTILE_K = 32\n\n\ndef kernel(x):\n    return x\n"
"""A kernel that it can change; the fake judge looks at the constants."""

REFUSED = "# broken\n"
"""What the fake judge refuses."""

_CONSTANT = re.compile(r"^([A-Z_]+) = (\d+)$", re.MULTILINE)
_CHANGE = re.compile(r"\b([A-Z_]+) = (\d+) -> (\d+)")
_PYTHON = re.compile(r"^(`{3,})python\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"\bplans? \d+(?: to \d+)? of \d+")
SLIP = "# Your last answer could not be used"

_TASKS = {
    "carry out a plan with tools": "session",
    "plan changes with tools": "planner_session",
    "carry out a plan": "executor",
    "repair a kernel": "repairer",
    "what an attempt taught": "reflector",
    "the experience in a pair": "summarizer",
}


def role_of(guide: str) -> str:
    """Return the role that a prompt is for."""
    return next((role for task, role in _TASKS.items() if f"# Your task: {task}" in guide), "planner")


def answer_question(model: str, guide: str, case: str) -> str:
    """Return the model's answer to a question.

    What it draws goes by what the question is about, not by how its prompt is worded.
    """
    role = role_of(guide)
    about = [model, role, *_PYTHON.findall(case), *_PLACE.findall(case), *_CHANGE.findall(case)]
    draw = int(digest_of(repr(about).encode())[:12], 16)
    if role in ("planner", "executor") and SLIP not in case and draw % 9 == 0:
        return "I would rather not say."
    return _ANSWERS[role](case, draw)


def _kernel(case: str) -> str:
    """Return the kernel that a question is about: the last block with constants."""
    sources = [text for _, text in _PYTHON.findall(case) if _CONSTANT.search(text)]
    return sources[-1]


def _plan(case: str, draw: int) -> str:
    return _json(draw_plan(case, draw))


def draw_plan(case: str, draw: int) -> dict[str, object]:
    constants = _CONSTANT.findall(_kernel(case))
    name, value = constants[(draw >> 8) % len(constants)]
    doubles = int(value) < 2 or (draw >> 16) % 2 == 0
    changed = int(value) * 2 if doubles else int(value) // 2
    return {
        "technique": "hoist",
        "site": name,
        "title": f"{name} = {value} -> {changed}",
        "bottleneck": "dma",
        "steps": [f"set {name} = {value} -> {changed}"],
        "prediction": {"speedup": 1.1, "reason": "it may be nearer to 100"},
        "risk": "none",
    }


def _implement(case: str, draw: int) -> str:
    name, _, changed = _CHANGE.findall(case)[0]
    source = re.sub(rf"^{name} = \d+$", f"{name} = {changed}", _kernel(case), flags=re.MULTILINE)
    return _python(source + (REFUSED if (draw >> 8) % 4 == 0 else ""))


def _repair(case: str, draw: int) -> str:
    """Take out what was refused; one time in three leave it, with another blank line."""
    source = _kernel(case)
    mended = source.replace(REFUSED, "") if (draw >> 8) % 3 else source + "\n"
    return _python(mended if mended != source else source + "\n# as it was\n")


def _reflect(case: str, draw: int) -> str:
    return _json({"lesson": f"lesson {draw % 5}"})


def _summarize(case: str, draw: int) -> str:
    if draw % 4 == 0:
        return _json({"found": False})
    said = dict.fromkeys(("strategy", "before", "after", "applies_when"), "move towards 100")
    return _json({"found": True, "title": f"title {draw % 3}", **said})


_ANSWERS = {
    "planner": _plan,
    "executor": _implement,
    "repairer": _repair,
    "reflector": _reflect,
    "summarizer": _summarize,
}


def _json(value: object) -> str:
    return f"So:\n\n```json\n{json.dumps(value)}\n```\n"


def _python(source: str) -> str:
    return f"Changed as planned.\n\n```python\n{source}```\n"


_VERSION = re.compile(r"^(v[1-9]\d*): (\w+)", re.MULTILINE)
_GAIN = re.compile(r"([\d.]+) times as fast as v0")


def take_turn(model: str, case: str, told: Sequence[str], turn: int) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls of a turn of a session: change, mend what is refused, end.

    `told` are the results of all calls so far.

    Some first turns talk and call nothing, call a tool that is none, or misspell an argument; which, follows
    from the plan. Told so, it does it right.
    """
    if role_of(case) == "planner_session":
        return _plan_in_turns(model, case, turn)
    name, value, changed = _CHANGE.findall(case)[0]
    draw = int(digest_of(repr([model, _kernel(case), name, changed]).encode())[:12], 16)
    judged = [found.groups() for text in told if (found := _VERSION.search(text))]
    if not judged:
        slip = draw % 8 if turn == 0 else 7
        if slip == 0:
            return "I would change a constant.", []
        edit = {"find": f"{name} = {value}\n", "replace": f"{name} = {changed}\n"}
        edit["replace"] += REFUSED if (draw >> 8) % 4 == 0 else ""
        wanted = json.dumps({"sorce" if slip == 1 else "source": "v0", "edits": [edit]})
        first = "check" if (draw >> 16) % 3 == 0 else "evaluate"
        return "I look.", [("history", "{}"), ("evalute" if slip == 2 else first, wanted)]
    version, verdict = judged[-1]
    if verdict == "keeps":
        return "Now the outputs.", [("evaluate", json.dumps({"source": version}))]
    if verdict == "correct":
        gain = float(_GAIN.findall("\n".join(told))[-1])
        if gain <= 1 and draw % 2:
            return "", [("give_up", json.dumps({"reason": f"{gain} times as fast"}))]
        return "", [("submit", json.dumps({"source": version, "title": f"{name} = {changed}"}))]
    if verdict == "lint_error":
        edit = {"find": REFUSED, "replace": ""}
        return "I mend it.", [("evaluate", json.dumps({"source": version, "edits": [edit]}))]
    return "", [("give_up", json.dumps({"reason": f"{version} is {verdict}"}))]


_MOST = re.compile(r"Submit (?:one|up to (\d+)) plan")


def _plan_in_turns(model: str, case: str, turn: int) -> tuple[str, list[tuple[str, str]]]:
    """Return a turn of a planner's session: look, then submit; some first submissions name no counter."""
    about = [model, _kernel(case), *_PLACE.findall(case)]
    draws = [int(digest_of(repr([*about, number]).encode())[:12], 16) for number in range(2)]
    if turn == 0:
        return "I look.", [("history", "{}"), ("lookup", json.dumps({"query": "loads"}))]
    if draws[0] % 7 == 0 and turn == 1:
        return "Nothing comes to mind.", [("give_up", json.dumps({"reason": "it is as it should be"}))]
    made = [draw_plan(case, draw) for draw in draws]
    kept = [one for number, one in enumerate(made) if one not in made[:number]]
    if draws[0] % 3 == 0 and turn == 1:
        kept[0]["prediction"] = {"speedup": 1.1, "counter": "Not a counter", "reason": "-"}
    found = _MOST.search(case)
    most = int(found[1] or 1) if found else 1
    return "", [("submit_plans", json.dumps({"plans": kept[:most]}))]


def take_ambitious_turn(
    model: str, case: str, told: Sequence[str], turn: int
) -> tuple[str, list[tuple[str, str]]]:
    """Return a turn as `take_turn` does, of a model that submits a second correct kernel besides its first.

    On some plans it is curious instead: before it ends a session it looks things up, turn after turn.
    """
    text, calls = take_turn(model, case, told, turn)
    if role_of(case) == "planner_session":
        return text, calls
    ends = [name for name, _ in calls if name in ("submit", "give_up")]
    planned, _, changed = _CHANGE.findall(case)[0]
    if ends and int(digest_of(f"{planned} {changed}".encode())[:4], 16) % 2:
        return "What else is there?", [("lookup", json.dumps({"query": f"tile {turn}"}))]
    if ends != ["submit"]:
        return text, calls
    correct = [found[1] for one in told if (found := _VERSION.search(one)) and found[2] == "correct"]
    if len(correct) == 1:
        name, value = next(one for one in _CONSTANT.findall(_kernel(case)) if one[0] != planned)
        edit = {"find": f"{name} = {value}\n", "replace": f"{name} = {int(value) * 2}\n"}
        return "One more.", [("evaluate", json.dumps({"source": "v0", "edits": [edit]}))]
    first, *others = correct
    also = [{"version": one, "title": f"{one} of the session"} for one in others]
    return "", [("submit", json.dumps({**json.loads(calls[0][1]), "source": first, "also": also}))]
