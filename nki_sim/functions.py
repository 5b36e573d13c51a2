"""Names of the element-wise functions that instructions take as `op=`, and the engines that run each.

The names are those of `nki.language`; `semantics` computes them. Sources: the documents' tables of supported
operators and of activation functions. Those tables leave out `divide`, `mod` and `fmod`, which the language
has but no instruction takes. The simulator assumes that what the language computes with them runs where
`multiply` runs [I].
"""

from __future__ import annotations

# Work on bit patterns: integers only, VectorE only.
BITWISE = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert"})
LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})
COMPARE = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
ARITHMETIC = (
    frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "mod", "fmod"})
    | frozenset({"abs", "rsqrt", "reciprocal"})
    | LOGICAL
    | COMPARE
)
# VectorE has these from NeuronCore-v4 on; two of them are activations of every generation.
V4_ALU = frozenset({"abs_max", "abs_min", "relu", "square"})
ALU = ARITHMETIC | BITWISE | V4_ALU
# Take one operand; the other one is ignored.
ALU_UNARY = frozenset({"abs", "rsqrt", "reciprocal", "logical_not", "invert", "relu", "square"})
# Integer functions of GpSimd and the sequencers.
INTEGER_ALU = COMPARE | {"add", "subtract", "multiply", "maximum", "minimum"}
REGISTER_ALU = INTEGER_ALU

BITWISE_REDUCE = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor"})
REDUCE = BITWISE_REDUCE | {
    "add", "subtract", "multiply", "maximum", "minimum", "average", "logical_and", "logical_or",
    "logical_xor",
}  # fmt: skip

# Each transcendental is assumed to have a table of its own [I]; the documents do not give the grouping.
# The empty string means that every table holds the function.
FUNCTION_TABLES: dict[str, str] = {
    **dict.fromkeys(("copy", "relu", "square", "abs", "sign"), ""),
    **{
        name: name
        for name in (
            "exp", "log", "tanh", "sigmoid", "silu", "silu_dx", "gelu", "gelu_dx", "gelu_apprx_tanh",
            "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "softplus", "mish", "erf", "erf_dx", "sqrt",
            "rsqrt", "reciprocal", "sin", "arctan",
        )
    },
}  # fmt: skip

ACTIVATIONS = frozenset(FUNCTION_TABLES)
# `activate2` also has the function with a parameter.
ACTIVATIONS2 = ACTIVATIONS | {"prelu"}

# Largest magnitudes for which ScalarE's polynomials are valid. The documents promise nothing beyond them.
VALID_RANGES: dict[str, tuple[float, float]] = {
    "log": (2.0**-64, 2.0**64),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (2.0**-42, 2.0**42),
    "sin": (0.0, 3.1415927410125732),
    "arctan": (0.0, 1.5707963705062866),
}

# Functions of the language that no instruction takes, because the hardware does not divide.
LANGUAGE_ALONE = frozenset({"divide", "mod", "fmod"})

FUNCTIONS = ALU | REDUCE | ACTIVATIONS2

# Other spellings of the language for the same function.
ALIASES = {"max": "maximum", "min": "minimum", "sum": "add", "mul": "multiply", "prod": "multiply"}
