"""Makes JSON in the place of a NEFF, for the stand-ins of the vendor's compilers.

What "hardware" will compute is a line of the kernel's file, `# computes: EXPRESSION`, over the names of its
arguments; a kernel without it compiles only where the runtime has a table of times (`spike`).
`# takes: MS [MS ...]` are the latencies that it will have, again
and again; `# stores: DTYPE` is what its outputs are, whatever was asked for; `# refused: WHEN` has the
compiler refuse it (`compile`), or the runtime when it is to `load` or to be `benchmarked`. `# fault: STEP
KIND` breaks a step (`compile`, `load`, `run`, `benchmark`): it may `raise`, `crash`, `exit` with a status, or
what that step's stand-in knows besides.
"""

import ctypes
import hashlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path


def break_step(faults, step):
    """Do what the kernel wants to happen at a step, if anything; return the kind of fault."""
    kind = faults.get(step, "")
    if kind == "raise":
        raise RuntimeError(f"the stand-in fails at {step}")
    if kind == "crash":
        ctypes.string_at(0)  # a jail may not send signals
    if kind == "exit":
        os._exit(3)
    return kind


def make_neff(func, arguments, **more):
    """Return what the runtime's stand-in loads; its outputs are to be added if the compiler is not told them.

    Raises:
        RuntimeError: the kernel asks to be refused.
    """
    source = Path(inspect.getsourcefile(func)).read_text()
    # The vendor's compiler starts programs of its own.
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    told = dict(re.findall(r"^# (computes|takes|stores|refused): (.*)$", source, re.MULTILINE))
    faults = dict(re.findall(r"^# fault: (\w+) (\w+)$", source, re.MULTILINE))
    break_step(faults, "compile")
    if told.get("refused") == "compile":
        raise RuntimeError("[NCC_INTERNAL] the kernel cannot be lowered")
    return {
        "inputs": {
            name: [list(value.shape), str(value.dtype)]
            for name, value in arguments.items()
            if hasattr(value, "shape")
        },
        "stores": told.get("stores"),
        "computes": told.get("computes"),
        "source": hashlib.sha256(source.encode()).hexdigest() if "computes" not in told else None,
        "takes": [float(text) for text in told.get("takes", "1.0").split()],
        "refused": told.get("refused", ""),
        "faults": faults,
        **more,
    }
