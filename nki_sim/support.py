"""What the simulator supports, read off its own tables and namespaces: nothing here is kept by hand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from nki_sim import dtypes, targets
from nki_sim.operators import OPERATORS, UNSUPPORTED
from nki_sim.operators.model import Operator


def report() -> dict[str, Any]:
    """Instructions with engines, targets and arguments; names of each namespace; what is refused."""
    return {
        "targets": list(targets.names()),
        "dtypes": list(dtypes.DTYPES),
        "supported": {name: _instruction(OPERATORS[name]) for name in sorted(OPERATORS)},
        "unsupported": sorted(UNSUPPORTED),
        "namespaces": namespaces(),
    }


def _instruction(operator: Operator) -> dict[str, Any]:
    return {
        "engines": list(operator.engines),
        "arguments": [_argument(item) for item in operator.arguments],
        "doc": operator.doc,
    }


def _argument(item: Any) -> str:
    if item.required:
        return str(item.name)
    return f"{item.name}={item.default}"


def namespaces() -> dict[str, list[str]]:
    """Public names of every module that kernels can import, by the name they import it under."""
    return {name: public(module) for name, module in sorted(_modules().items())}


def public(module: ModuleType) -> list[str]:
    """What a module offers: names without a leading underscore that are no modules."""
    found = vars(module)
    return sorted(name for name in found if name[0] != "_" and not isinstance(found[name], ModuleType))


def _modules() -> dict[str, ModuleType]:
    from nki_sim.frontend.entry import _MODULES

    return _MODULES
