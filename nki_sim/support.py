"""Reports what the simulator supports, read from its own tables and namespaces; nothing is listed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nki_sim import dtypes, targets
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.operators.model import Argument, Operator


def describe_support() -> dict[str, Any]:
    """Return instructions with engines, targets and arguments, the names of each namespace, and what is
    refused.
    """
    return {
        "targets": list(targets.names()),
        "dtypes": list(dtypes.DTYPES),
        "supported": {
            name: _describe_instruction(op) for name, op in sorted(OPERATORS.items()) if not op.internal
        },
        "unsupported": list_refused(),
        "namespaces": list_namespaces(),
    }


def format_support(found: dict[str, Any]) -> Iterator[str]:
    """Format the report for people."""
    yield f"targets: {', '.join(found['targets'])}"
    yield f"data types: {', '.join(found['dtypes'])}"
    yield "\ninstructions (nisa.*; engines, the first is the default; targets):"
    for name, item in found["supported"].items():
        yield f"  {name}({', '.join(item['arguments'])})"
        yield f"      {', '.join(item['engines'])}; {', '.join(item['targets'])}"
    yield f"\nrefused by name: {', '.join(found['unsupported'])}"
    for module, names in found["namespaces"].items():
        yield f"\n{module}: {', '.join(names)}"


def _describe_instruction(operator: Operator) -> dict[str, Any]:
    return {
        "engines": [*operator.engines, *operator.v4_engines],
        "targets": [name for name in targets.names() if not _is_refused(operator, name)],
        "arguments": [_format_argument(item) for item in operator.signature],
        "doc": operator.doc,
    }


def _is_refused(operator: Operator, target: str) -> bool:
    """Whether a rule refuses the bare instruction; rules about operands fail here and do not count."""
    form, machine = Form(operator.name, operator.engines[0], (), ()), targets.load(target)
    for rule in operator.rules:
        try:
            found = list(rule(form, machine))
        except (AssertionError, LookupError, ValueError):
            continue
        if any(breach.code == "generation" for breach in found):
            return True
    return False


def _format_argument(item: Argument) -> str:
    return item.name if item.required else f"{item.name}={item.default}"


def list_refused() -> list[str]:
    """Return the functions that the documents describe and that are refused by name, with their modules."""
    from nki_sim.frontend.modules import COLLECTIVES

    return [*(f"nki.collectives.{name}" for name in sorted(COLLECTIVES)), "nki.language.dynamic_range"]


def list_namespaces() -> dict[str, list[str]]:
    """Return the public names of every module that kernels can import, by import name."""
    from nki_sim.frontend import modules
    from nki_sim.frontend.legacy import modules as legacy

    found = {**modules.MODULES, **legacy.MODULES}
    return {name: names for name, module in sorted(found.items()) if (names := modules.list_offered(module))}
