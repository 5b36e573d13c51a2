"""The element-wise functions that instructions take as `op=`: their names and where each may run.

The names are those of `nki.language`; what they compute is in `semantics`. `TABLES` maps an activation to
the ScalarE function table it needs; the empty string means that every table holds it.
"""

from __future__ import annotations

ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "abs_max"})
COMPARE = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
ALU = ARITHMETIC | COMPARE
REGISTER_ALU = COMPARE | {"add", "subtract", "multiply", "maximum", "minimum"}
REDUCE = frozenset({"add", "multiply", "maximum", "minimum"})

# Each transcendental is taken to live in a table of its own [I]; the documents do not give the grouping.
TABLES: dict[str, str] = {
    **dict.fromkeys(("copy", "identity", "relu", "square", "abs", "sign", "negative"), ""),
    **{
        name: name
        for name in (
            "exp", "log", "tanh", "sigmoid", "silu", "gelu", "softplus",
            "sqrt", "rsqrt", "reciprocal", "sin", "erf", "mish", "arctan",
        )
    },
}  # fmt: skip

ACTIVATIONS = frozenset(TABLES)
FUNCTIONS = ALU | REDUCE | ACTIVATIONS

# Spellings of the language that mean the same function.
ALIASES = {"max": "maximum", "min": "minimum", "sum": "add", "mul": "multiply", "prod": "multiply"}
