"""What runs in the pool's processes: pure functions from JSON to JSON, so that LibCST stays out of the loop.

Every answer is either `{"ok": ...}` or `{"error": {"code", "message"}}`; the same request always gets the
same bytes.
"""

from __future__ import annotations

import ast
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from random import Random
from typing import Any

from nki_sim import targets
from seeds import ProblemSpec
from targets.nki.rewrites.estimate import estimate
from targets.nki.rewrites.explore import checked, explore
from targets.nki.rewrites.inlining import canonical
from targets.nki.rewrites.model import Argument, ArrayArgument
from targets.nki.rewrites.proxy import instructions, proxy
from targets.nki.rewrites.rank import Evidence, chosen, expected, ranked
from targets.nki.rewrites.reader import read
from targets.nki.rewrites.retrace import followed, retrace
from targets.nki.rewrites.transform import Refused
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.nki.rewrites.tree import SourceError
from targets.nki.rewrites.wander import wander

MAX_REASONS = 8
COLLECT_EVERY = 200_000
"""Objects that a job makes before those no longer used are looked for."""
_PERCENT = "_active_time_percent"


class _JobError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def answer(request: str) -> str:
    """Answer one request `{"job": ..., ...}`."""
    values = json.loads(request)
    try:
        with _few_collections():
            made = _JOBS[values["job"]](values)
    except _JobError as failure:
        return json.dumps({"error": {"code": failure.code, "message": str(failure)}})
    except SourceError as error:
        return json.dumps({"error": {"code": "unreadable_kernel", "message": str(error)}})
    except Refused as refusal:
        return json.dumps({"error": {"code": "does_not_apply", "message": str(refusal)}})
    return json.dumps({"ok": made}, sort_keys=True)


@contextmanager
def _few_collections() -> Iterator[None]:
    """A job makes many small objects and keeps most: looking through them for garbage finds little."""
    usual = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _evidence(values: dict[str, Any]) -> Evidence:
    return Evidence(
        bottlenecks=_bottlenecks(values["bottleneck"], values["profile"]),
        tried=frozenset((technique, place) for technique, place in values["tried"]),
        credits=_credits(values),
    )


def _credits(values: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {name: (int(tries), float(gain)) for name, (tries, gain) in values["credits"].items()}


def _rank(values: dict[str, Any]) -> dict[str, Any]:
    """The plans of one parent: `count` rewrites with their places, and why others do not apply."""
    target = targets.load(values["target"])
    ranking, refusals = ranked(values["source"], _arguments(values), target, _evidence(values))
    picked = chosen(ranking, values["count"], values["seed"])
    siblings = {
        item.place: [dict(other.choice) for other in ranking if _same_site(item, other)] for item in picked
    }
    plans = [asdict(item) | {"place": item.place, "choices": siblings[item.place]} for item in picked]
    return {"plans": plans, "refusals": refusals[:MAX_REASONS]}


def _bottlenecks(named: str | None, profile: dict[str, float]) -> frozenset[str]:
    """The profile's class and its busiest engine, `tensor` to `dma`."""
    busy = {name.removesuffix(_PERCENT).removesuffix("_engine"): value for name, value in profile.items()}
    busiest = max(sorted(busy), key=busy.__getitem__, default=None)
    return frozenset(name for name in (named, busiest) if name is not None)


def _same_site(item: Any, other: Any) -> bool:
    return bool(item is not other and (item.technique, item.site) == (other.technique, other.site))


def _expand(values: dict[str, Any]) -> dict[str, Any]:
    """All rewrites of a kernel, each carried out, with what is expected of it and its size."""
    target = targets.load(values["target"])
    kernel = read(values["source"], _arguments(values), target)
    children, refusals = explore(kernel, _arguments(values), target)
    before = estimate(kernel, target)
    evidence = Evidence(bottlenecks=frozenset({before.busiest}), credits=_credits(values))
    moves = [
        {
            "technique": child.transform.id,
            "site": child.site,
            "choice": dict(child.choice),
            "title": child.transform.title(child.site, child.choice),
            "source": child.source,
            "value": expected(child, before, evidence),
            "instructions": instructions(child.kernel),
        }
        for child in children
    ]
    return {"moves": moves, "reasons": refusals[:MAX_REASONS]}


def _proxy(values: dict[str, Any]) -> dict[str, Any]:
    """The dimensions to predict at, smaller where the problem has too many instructions."""
    spec, dims = ProblemSpec.model_validate(values["spec"]), values["dims"]
    found = proxy(values["source"], spec, dims, targets.load(values["target"]), values["most"])
    return {"dims": found.dims, "instructions": found.instructions}


def _combine(values: dict[str, Any]) -> dict[str, Any]:
    """The sources after more and more of several rewrites, without those that no longer apply."""
    source, done, made = values["source"], [], []
    for number, step in enumerate(values["steps"]):
        try:
            source = _rewritten(source, step, values)
        except (Refused, SourceError, _JobError):
            continue
        done.append(number)
        made.append({"steps": list(done), "source": source})
    return {"made": made}


def _retrace(values: dict[str, Any]) -> dict[str, Any]:
    """What a sequence that paid elsewhere comes to here: the steps that apply, and the source after each."""
    target = targets.load(values["target"])
    past = followed(values["legs"], _arrays(values["theirs"]), target)
    made = retrace(values["source"], _arguments(values), target, past)
    return {
        "made": [
            {
                "number": one.number,
                "technique": one.technique,
                "site": one.site,
                "title": one.title,
                "choice": dict(one.choice),
                "source": one.source,
                "instructions": instructions(one.kernel),
            }
            for one in made
        ]
    }


def _wander(values: dict[str, Any]) -> dict[str, Any]:
    """The source after a sequence of rewrites, its length and all its steps drawn by a seed."""
    random = Random(values["seed"])  # noqa: S311  a search, no secret
    steps = random.randint(1, values["longest"])
    target = targets.load(values["target"])
    made = wander(values["source"], _arguments(values), target, steps, random)
    told = [
        {
            "technique": one.transform.id,
            "site": one.site,
            "title": one.transform.title(one.site, one.choice),
            "choice": dict(one.choice),
        }
        for one in made
    ]
    return {"steps": told, "source": made[-1].source if made else values["source"]}


def _replay(values: dict[str, Any]) -> dict[str, Any]:
    """The source after a whole sequence of rewrites."""
    source = values["source"]
    for step in values["steps"]:
        source = _rewritten(source, step, values)
    return {"source": source}


def _apply(values: dict[str, Any]) -> dict[str, Any]:
    """The source after one rewrite."""
    source = _rewritten(values["source"], values, values)
    transform = TRANSFORMS[values["technique"]]
    return {
        "source": source,
        "note": transform.title(values["site"], values["choice"]),
        "keeps": transform.keeps,
    }


def _rewritten(source: str, step: dict[str, Any], values: dict[str, Any]) -> str:
    """The source after a rewrite that leads to a kernel which is read and fits, as `explore` demands."""
    transform = TRANSFORMS.get(step["technique"])
    if transform is None:
        raise _JobError("unknown_technique", f"no built-in transformation is called {step['technique']!r}")
    target = targets.load(values["target"])
    kernel = canonical(read(source, _arguments(values), target), target)
    place = transform.places(kernel, target).get(step["site"])
    if place is None:
        raise _JobError("does_not_apply", f"{transform.id}: the kernel has no site {step['site']!r}")
    new = transform.apply(kernel, target, place, step["choice"])
    _check_changed(source, new)
    checked(kernel, new, _arguments(values), target)
    return new


def _check_changed(before: str, after: str) -> None:
    try:
        same = ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except SyntaxError as error:
        raise _JobError("does_not_parse", f"the rewritten kernel does not parse: {error.msg}") from error
    if same:
        raise _JobError("no_change", "the rewrite changes nothing")


def _arguments(values: dict[str, Any]) -> list[Argument]:
    return _arrays(values["arguments"])


def _arrays(told: list[Any]) -> list[Argument]:
    """Arrays are pairs of shape and type, all else the numbers that they are."""
    return [ArrayArgument(tuple(item[0]), item[1]) if isinstance(item, list) else item for item in told]


_JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "rank": _rank,
    "apply": _apply,
    "expand": _expand,
    "proxy": _proxy,
    "combine": _combine,
    "replay": _replay,
    "retrace": _retrace,
    "wander": _wander,
}
