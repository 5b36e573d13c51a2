"""Stands in for the vendor's standalone compiler: its entry point, and JSON in the place of a NEFF.

What "hardware" will compute is a line of the kernel's file, `# computes: EXPRESSION`, over the names of its
arguments; a kernel without it compiles only where the runtime has a table of times (`spike`).
`# takes: MS [MS ...]` are the latencies that it will have, again
and again; `# stores: DTYPE` is what its outputs are, whatever was asked for; `# refused: WHEN` has the
compiler refuse it (`compile`), or the runtime when it is to `load` or to be `benchmarked`.
"""

import enum
import hashlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path


class NKI_IR_VERSION(enum.Enum):
    beta2 = 2
    beta3 = 3


def compile_nki_ir_kernel_to_neff(
    *,
    kernel_func,
    kernel_inputs_dict,
    kernel_outputs,
    platform_target,
    logical_nc_config,
    output_directory,
    version,
):
    source = Path(inspect.getsourcefile(kernel_func.func)).read_text()
    # The vendor's compiler starts programs of its own.
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    told = dict(re.findall(r"^# (computes|takes|stores|refused): (.*)$", source, re.MULTILINE))
    if told.get("refused") == "compile":
        raise RuntimeError("[NCC_INTERNAL] the kernel cannot be lowered")
    zeros = "".join(f"np.zeros({list(item.shape)})," for item in kernel_outputs)
    neff = {
        "inputs": {
            name: [list(value.shape), str(value.dtype)]
            for name, value in kernel_inputs_dict.items()
            if hasattr(value, "shape")
        },
        "outputs": [
            [item.name, list(item.shape), told.get("stores", str(item.dtype))] for item in kernel_outputs
        ],
        "computes": told.get("computes", f"({zeros})"),
        "source": hashlib.sha256(source.encode()).hexdigest() if "computes" not in told else None,
        "takes": [float(text) for text in told.get("takes", "1.0").split()],
        "refused": told.get("refused", ""),
        "target": platform_target,
        "version": version.name,
    }
    (Path(output_directory) / "file.neff").write_text(json.dumps(neff))
