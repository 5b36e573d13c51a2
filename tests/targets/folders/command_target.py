"""A target whose kernels are texts `scale = A` and `shift = B`, run by a command in Python."""

from __future__ import annotations

from pathlib import Path

KERNEL = "kernel affine\nscale = 2  # tune: scale in 1, 2\nshift = 1\n"

_TARGET = """
format = 1
name = "adder"
version = 2
title = "Adder"

[rates]
bandwidth_gb_s = 1
multiply_add_gflops = 1
other_gflops = 1

[command]
run = ["python3", "evaluate.py"]
deadline_s = 20

[language]
name = "Affine"
fence = "text"
kernel_file = "kernel.affine"
entry = "^kernel (\\\\w+)$"
operators = "scale|shift"

[counters]
cycles = "counted by the adder"
"""

_COMMAND = """
import array, json, pathlib, sys, time
request = json.load(sys.stdin)
text = pathlib.Path(request["kernel"]).read_text()
values = dict(line.split("#")[0].split(" = ") for line in text.splitlines() if " = " in line)
if "garbage" in text:
    print("no JSON"); sys.exit()
if "breaks" in text:
    sys.exit("the board does not answer")
if "hangs" in text:
    time.sleep(60)
if "shift" not in values:
    error = {"code": "no_shift", "message": "shift is missing", "stage": "compile", "line": 2}
    print(json.dumps({"error": error}))
    sys.exit()
for one in request["sets"]:
    x = array.array("f", pathlib.Path(one["inputs"][0]).read_bytes())
    out = array.array("f", [float(values["scale"]) * value + float(values["shift"]) for value in x])
    pathlib.Path(one["outputs"][0]).write_bytes(out.tobytes()[: 8 if "short" in text else None])
answer = {"latency_ms": 0.5, "low_ms": 0.4, "high_ms": 0.6, "samples": 7, "counters": {"cycles": 12.0},
          "bottleneck": "cycles"} if request["measure"] else {}
print(json.dumps(answer))
"""


def write_command_target(folder: Path) -> Path:
    """Write the folder."""
    folder.mkdir(parents=True)
    (folder / "target.toml").write_text(_TARGET)
    (folder / "evaluate.py").write_text(_COMMAND)
    return folder
