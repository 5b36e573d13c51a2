"""A proposer without a model for any language with comments: it tries the values that a kernel's comments
list.

A comment names a setting and its values; the setting's first definition in the text has the current one:

    // tune: TILE in 8, 16, 32, 64
    #define TILE 8
    // tune: flags in "-O2 -march=native", "-O3 -march=native -ffast-math"
    // flags: -O2 -march=native

A definition is `#define NAME value`, `NAME = value` or, in a comment, `NAME: value`. Plans change one
setting, then two at once; settings that gained come first. A kernel whose code the run has tried is not made
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from agent_core.effects import ImplementRequest, LearningContext, PlanRequest
from agent_core.roles import KernelAnswer, PlanAnswer, ReadBlob, RoleError
from agent_core.roles.mechanical import MechanicalLearner
from state.model import EffectKey, ErrorInfo, Plan, Prediction
from targets.registry import load_target

TECHNIQUE = "parameter"
_COMMENT = r"(?://|#|--|;)"
_TUNE = re.compile(rf"^[ \t]*{_COMMENT}+[ \t]*tune:[ \t]*(\w+)[ \t]+in[ \t]+(.+?)[ \t]*$", re.MULTILINE)
_VALUE = re.compile(r'"([^"\n]*)"|([^,"\s]+)')
_GUESSED_GAIN = 1.1
"""What a change that nobody has tried is expected to bring: a grade needs a number."""


class ParameterError(Exception):
    """A `tune:` comment is wrong; the message says how."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting of a kernel: its values, the current one, and where that stands in the text."""

    name: str
    values: tuple[str, ...]
    current: str
    span: tuple[int, int]


def find_parameters(source: str) -> list[Parameter]:
    """Return the settings that a kernel's comments list, in their order.

    Raises:
        ParameterError: a setting without values or without a definition, or named twice.
    """
    found: dict[str, Parameter] = {}
    for name, text in _TUNE.findall(source):
        values = tuple(dict.fromkeys(quoted or bare for quoted, bare in _VALUE.findall(text)))
        if name in found:
            raise ParameterError(f"`tune: {name}` is given twice")
        if not values:
            raise ParameterError(f"`tune: {name}` lists no values")
        found[name] = _find_definition(source, name, values)
    return list(found.values())


def _find_definition(source: str, name: str, values: tuple[str, ...]) -> Parameter:
    patterns = (
        rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(\S+)",
        rf"^[ \t]*{_COMMENT}[ \t]*{name}:[ \t]*(\S.*?)[ \t]*$",
        rf"^[^\n/]*?\b{name}[ \t]*=[ \t]*([^;,\s]+)",
    )
    for pattern in patterns:
        if (match := re.search(pattern, source, re.MULTILINE)) is not None:
            return Parameter(name, values, match[1], match.span(1))
    raise ParameterError(f"`tune: {name}` has no definition: `#define {name} VALUE` or `{name} = VALUE`")


def set_parameters(source: str, values: Mapping[str, str]) -> str:
    """Return the kernel with these values.

    Raises:
        ParameterError: it has no such setting.
    """
    known = {one.name: one for one in find_parameters(source)}
    for name in values:
        if name not in known:
            raise ParameterError(f"there is no setting {name}")
    for one in sorted((known[name] for name in values), key=lambda one: one.span, reverse=True):
        first, end = one.span
        source = f"{source[:first]}{values[one.name]}{source[end:]}"
    return source


def list_changes(parameters: Sequence[Parameter], gains: Mapping[str, float]) -> Iterator[dict[str, str]]:
    """Yield changes of one setting, then of two; settings with larger `gains` come first, near values
    first."""
    ordered = sorted(parameters, key=lambda one: -gains.get(one.name, 1.0))
    steps = {one.name: _order_values(one) for one in ordered}
    longest = max((len(values) for values in steps.values()), default=0)
    for number in range(longest):
        yield from ({name: values[number]} for name, values in steps.items() if number < len(values))
    for one, other in combinations(ordered, 2):
        yield from (
            {one.name: mine, other.name: theirs} for mine in steps[one.name] for theirs in steps[other.name]
        )


def _order_values(parameter: Parameter) -> list[str]:
    """The values besides the current one, the nearest in the list first."""
    values = parameter.values
    at = values.index(parameter.current) if parameter.current in values else 0
    numbered = sorted((abs(number - at), number) for number in range(len(values)))
    return [values[number] for _, number in numbered if values[number] != parameter.current]


class ParameterProposer(MechanicalLearner):
    """Plans number n of a kernel is the n-th change that the run has not tried."""

    name, repairs = "parameters", False

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        """Return the change of this number.

        Raises:
            RoleError: bad_parameters, no_parameters, or nothing_left.
        """
        source = read(request.parent.source).decode()
        context = LearningContext.model_validate_json(read(request.context))
        parameters = _read_parameters(source)
        if not parameters:
            text = "the kernel lists no settings: add comments such as `tune: TILE in 8, 16, 32`"
            raise RoleError(ErrorInfo(code="no_parameters", message=text))
        tried = {one.code for one in context.attempts} | {request.parent.code}
        gains = _gains_by_setting(context)
        wanted = EffectKey.parse(request.key).plan
        for change in list_changes(parameters, gains):
            code = load_target(request.target).language.code_digest(set_parameters(source, change).encode())
            if code in tried:
                continue
            if wanted == 0:
                return PlanAnswer(_make_plan(change, parameters, gains))
            wanted -= 1
            tried.add(code)
        raise RoleError(
            ErrorInfo(code="nothing_left", message="all changes of one or two settings were tried")
        )

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        """Return the kernel with the plan's values."""
        values = request.plan.detail
        assert isinstance(values, dict)
        source = set_parameters(
            read(request.parent.source).decode(), {name: str(one) for name, one in values.items()}
        )
        return KernelAnswer(source, request.plan.title)

    async def aclose(self) -> None:
        """Do nothing: no resource is held."""


def _read_parameters(source: str) -> list[Parameter]:
    try:
        return find_parameters(source)
    except ParameterError as error:
        raise RoleError(ErrorInfo(code="bad_parameters", message=str(error))) from error


def _gains_by_setting(context: LearningContext) -> dict[str, float]:
    """The largest speed-up that a change of each setting brought."""
    gains: dict[str, float] = {}
    for one in context.attempts:
        for name in one.site.split(" and "):
            gains[name] = max(gains.get(name, 0.0), one.speedup or 0.0)
    return gains


def _make_plan(
    change: Mapping[str, str], parameters: Sequence[Parameter], gains: Mapping[str, float]
) -> Plan:
    current = {one.name: one.current for one in parameters}
    known = [gains[name] for name in change if name in gains]
    guess = max(1.0, *known) if known else _GUESSED_GAIN
    return Plan(
        technique=TECHNIQUE,
        site=" and ".join(change),
        title=", ".join(f"{name} = {current[name]} -> {value}" for name, value in change.items()),
        prediction=Prediction(
            speedup=guess, reason="what changes of these settings brought" if known else "not tried yet"
        ),
        detail=dict(change),
    )


def create() -> ParameterProposer:
    """Return a proposer."""
    return ParameterProposer()
