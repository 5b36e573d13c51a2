"""Kernels and references that never end, in every way that Python offers, also inside one call of C."""

from __future__ import annotations

import seeds

_HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"

_KERNEL = """

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    {body}
    return out
"""

# Tensors and instructions are counted; the sums beside them put off the count's limit by minutes.
_BODIES = {
    "loop": "while True:\n        pass",
    "loop that catches": (
        "while True:\n        try:\n            pass\n        except BaseException:\n            pass"
    ),
    "generator": "for _ in (one for one in iter(int, 1)):\n        pass",
    "sum in C": "sum(iter(int, 1))",
    "all in C": "all(one == 0 for one in iter(int, 1))",
    "search in C": "1.5 in range(10**15)",
    "list in C": "max(range(10**15))",
    "power": "7 ** 10**9",
    "digits": "len(str(7 ** 10**8))",
    "recursion": ("def half(n):\n        return half(n - 1) + half(n - 1) if n else 1\n    half(90)"),
    "instructions": "while True:\n        sum(range(10**4))\n        nisa.memset(dst=t, value=0.0)",
    "tensors": (
        "while True:\n        sum(range(10**4))\n        nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.hbm)"
    ),
}

_CONSTANTS = {
    "sum at import": "TOTAL = sum(iter(int, 1))\n",
    "power at import": "POWER = 7 ** 10**9\n",
    "regular expression": "import re\n\nFOUND = re.match(r'(a+)+$', 'a' * 60 + 'b')\n",
}

ENDLESS = {
    **{name: _HEAD + _KERNEL.format(body=body) for name, body in _BODIES.items()},
    **{name: _HEAD + text + _KERNEL.format(body="pass") for name, text in _CONSTANTS.items()},
}
"""By what they do: kernels of one input x that do not end, or not within minutes."""

REFUSED = frozenset({"sum at import", "regular expression", "loop that catches"})
"""Those that a static rule refuses before anything runs."""


def with_endless_reference(problem: seeds.Problem) -> seeds.Problem:
    """Return a problem whose reference does not end, inside one call of C."""
    text = problem.files["reference.py"].decode()
    place = text.index("\n", text.index("def reference(")) + 1
    files = {**problem.files, "reference.py": f"{text[:place]}    sum(iter(int, 1))\n{text[place:]}".encode()}
    return seeds.build_problem(files)
