"""The source of a call of an instruction: its operands and parameters by keyword, defaults left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from nki_sim.dtypes import DTYPES
from nki_sim.operators import OPERATORS, Argument
from targets.nki.raising.instruction_rows import NotRaised, RowKey

_ENUMERATIONS = {
    "dge_mode": "nisa.dge_mode",
    "oob_mode": "nisa.oob_mode",
    "reduce_cmd": "nisa.reduce_cmd",
    "perf_mode": "nisa.matmul_perf_mode",
}

_WITHOUT_DEFAULT = frozenset({"accumulate"})
"""Parameters that mean something else when they are left out."""


def call_text(key: RowKey, operands: Mapping[str, str], counted: Mapping[str, str]) -> str:
    """The source of a call; `operands` and `counted` have the sources of tensors and moving integers.

    An operand of a group's name is the whole group; otherwise the group is a list of its operands.
    """
    operator = OPERATORS[key.op]
    params = {name: item.value for name, item in key.params}
    words: dict[str, str] = {}
    for argument in operator.arguments:
        if argument.group in operands:
            words[argument.group] = operands[argument.group]
            continue
        text = operands.get(argument.name) or counted.get(argument.name)
        if text is None and argument.name in params:
            text = _parameter_text(argument, _typed_value(key, argument.name, params[argument.name]))
        if text is None or (text == _default_text(argument) and argument.name not in _WITHOUT_DEFAULT):
            continue
        if argument.group:
            words[argument.group] = f"{words[argument.group]}, {text}" if argument.group in words else text
        else:
            words[argument.name] = text
    for name in operator.groups.keys() - operands.keys():
        words[name] = f"[{words[name]}]"
    if operator.engines != ("dma",) and key.engine != _default_engine(key, params):
        words["engine"] = f"nisa.engine.{key.engine}"
    return f"nisa.{key.op}({', '.join(f'{name}={text}' for name, text in words.items())})"


def _typed_value(key: RowKey, name: str, value: Any) -> Any:
    """A parameter's value; what fills a tile of integers is an integer, as `memset` converts nothing."""
    if key.op != "memset" or name != "value" or not isinstance(value, float):
        return value
    return int(value) if DTYPES[key.operands[0].dtype].kind in {"int", "uint"} else value


def _default_engine(key: RowKey, params: Mapping[str, Any]) -> str:
    operands: Sequence[Any] = [
        _EngineOperand(item.role, item.dtype, item.home.buffer) for item in key.operands
    ]
    return OPERATORS[key.op].default_engine(tuple(params.items()), operands)


class _EngineOperand:
    """What the choice of an engine reads of an operand."""

    def __init__(self, role: str, dtype: str, buffer: str) -> None:
        self.role, self.dtype, self.buffer = role, dtype, buffer


def _default_text(argument: Argument) -> str | None:
    return None if argument.default is None else _parameter_text(argument, argument.default)


def _parameter_text(argument: Argument, value: Any) -> str:
    writer = _WRITERS.get(argument.kind)
    if writer is None:
        raise NotRaised(f"the parameter {argument.name} of kind {argument.kind}")
    return writer(argument, value)


def _function_text(argument: Argument, value: Any) -> str:
    del argument
    return f"nl.{value}"


def _choice_text(argument: Argument, value: Any) -> str:
    return f"{_ENUMERATIONS.get(argument.name, 'nl')}.{value}"


def _plain_text(argument: Argument, value: Any) -> str:
    del argument
    return repr(value) if not isinstance(value, float) or isfinite(value) else f'float("{value}")'


def _axes_text(argument: Argument, value: Any) -> str:
    del argument
    return repr(value[0]) if len(value) == 1 else repr(value)


def _pattern_text(argument: Argument, value: Any) -> str:
    del argument
    return repr([list(pair) for pair in zip(value[::2], value[1::2], strict=True)])


_WRITERS: dict[str, Callable[[Argument, Any], str]] = {
    **dict.fromkeys(("alu", "activation", "reduce"), _function_text),
    **dict.fromkeys(("bool", "int", "float", "ints", "tensor_or_float", "tensor_or_int"), _plain_text),
    "choice": _choice_text,
    "axes": _axes_text,
    "pattern": _pattern_text,
}
