"""Kernels in C for the judge: honest ones, and ones that cheat, crash or attack.

Each is a file of `honest/` or `hostile/`; a comment lists the verdicts that are right. `correct` is among
those of an attack that has no effect. All are for `shifted_scale`: out = 2 x + 1, with M rows and N columns.
"""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent
_VERDICTS = re.compile(r"^// verdicts: (.*)$", re.MULTILINE)

HONEST = {path.stem: path.read_text() for path in sorted((_FOLDER / "honest").glob("*.c"))}
HOSTILE = {path.stem: path.read_text() for path in sorted((_FOLDER / "hostile").glob("*.c"))}
PLAIN = HONEST["plain"]

PROBLEM = {
    "problem.toml": b"""
name = "shifted_scale"
formula = "out = 2 x + 1"
rel_l2 = 1e-5
seeds = [0, 7]
shape_generic = true
sizes = { full = { M = 256, N = 512 }, reduced = { M = 64, N = 256 } }
work = { other_flops = "2 * M * N" }
[[inputs]]
name = "x"
shape = ["M", "N"]
[[outputs]]
name = "out"
shape = ["M", "N"]
""",
    "reference.py": b"def reference(x):\n    return (2 * x.astype('float64') + 1).astype('float32')\n",
    "kernel.c": PLAIN.encode(),
}


def right_verdicts(source: str) -> frozenset[str]:
    """Return the verdicts that a kernel of these folders may get."""
    (text,) = _VERDICTS.findall(source)
    return frozenset(text.split(", "))
