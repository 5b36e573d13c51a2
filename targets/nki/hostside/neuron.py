"""The vendor's device: the SDK's compiler in a jail, the runtime on one NeuronCore, and the profiler.

No two SDK releases are alike, so the installed one is probed: the ways to compile (`neuron_compiler`), the
runtime (`neuron_runtime`), the profiler (neuron-explorer, or the older neuron-profile). The artefact is a
NEFF; running it imports nothing from the kernel.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote.hostside.devices import LoadedKernel
from remote.hostside.devices.jail import describe_result, run_in_jail
from remote.hostside.devices.scratch import WatchedScratch
from remote.hostside.task import StepTask
from targets.nki.hostside import neuron_compiler, neuron_runtime

CORE_VARIABLE = "NEURON_RT_VISIBLE_CORES"
PACKAGES = ("neuronx-cc", "nki", "nrtpy", "nkipy", "spike", "libneuronxla", "torch-neuronx", "jax-neuronx")
TOOLS = ("/opt/aws/neuron/bin",)
PROFILERS = ("neuron-explorer", "neuron-profile")
TABLES = ("ActiveTime", "DmaPacketAggregated", "Flow", "Instruction", "Metadata", "TensorInfo")
"""The tables of a full profile that home reads (`targets.nki.hosts.profile_tables`)."""
_TOOL_S = 900
_DEVICES = Path("/sys/devices/virtual/neuron_device")  # one folder per device of the Neuron driver
_SYSFS = "/sys/devices/virtual/neuron_device/neuron*/info/architecture/"
_FAMILIES = {"trn1": "trn1", "inf2": "trn1", "trn2": "trn2", "trn3": "trn3"}
"""Targets by how the names of instances begin: there are trn1n, trn2u and trn3pds too."""


def probe_device() -> dict[str, Any]:
    """Return the facts about a Neuron device and its SDK, and in words what is `lacking`."""
    listed = _list_devices()
    instance = _find_instance_type(listed)
    routes, why = neuron_compiler.find_routes()
    lacking = [] if listed["cores"] else ["no NeuronCore: neuron-ls lists none"]
    lacking += why
    runtime = neuron_runtime.find_runtime()
    if runtime is None:
        text = "no runtime: neither nrtpy (SDK 2.32 on, in an environment of its own) nor spike is installed"
        lacking.append(text)
    return {
        "lacking": lacking,
        "instance_type": instance,
        "architecture": next((_FAMILIES[name] for name in _FAMILIES if instance.startswith(name)), ""),
        "cores": listed["cores"],
        "routes": routes,
        "runtime": runtime.describe() if runtime else "",
        "profiler": _profiler_version(),
    }


def list_cores(devices: Path = _DEVICES) -> list[int]:
    """Return the numbers of the logical NeuronCores; empty without a device.

    The driver lists physical cores; how many make a logical one, we tell the runtime.
    """
    count = 0
    for device in sorted(devices.glob("neuron[0-9]*")):
        count += sum(1 for _ in device.glob("neuron_core[0-9]*")) // neuron_runtime.LOGICAL_SIZE
    return list(range(count))


def compile_kernel(task: StepTask, libraries: Mapping[str, Path], to: Path) -> dict[str, Any]:
    """Compile the kernel in a jail that may write to one folder of its own."""
    from remote.jail_backends import JailedProgram, JailLimits

    scratch = task.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    program = JailedProgram(
        "targets.nki.hostside.neuron_compiler",
        packages=(libraries["targets.nki.hostside.zip"] / "targets",),
        site_packages=True,
        programs=True,
        scratch=scratch,
        variables=(("PATH", os.pathsep.join(_tool_folders())), *_compiler_variables(scratch, task)),
        limits=JailLimits(**task.payload["limits"]),
    )
    request = {**task.payload["request"], "folder": str(scratch)}
    watched = WatchedScratch(scratch)
    try:
        with watched.watch_folder():
            result = run_in_jail(program, json.dumps(request).encode(), task.payload.get("strength"))
        ended = {
            **describe_result(result),
            "told": _parse_compiler_answer(result.answer),
            "scratch": watched.ended,
        }
        neff = scratch / neuron_compiler.NEFF
        # Leave behind what else the kernel's Python wrote there; a link would lead out of the folder.
        made = not watched.ended and "neff" in ended["told"] and neff.is_file() and not neff.is_symlink()
        if made:
            shutil.copyfile(neff, to)
        else:
            to.write_bytes(b"")
    finally:
        watched.remove_folder()
    return ended


def open_device(task: StepTask, artefact: Path) -> LoadedKernel:
    """Load a NEFF on the core of the job's lease, the only core that the runtime sees."""
    ended = json.loads(artefact.with_name("ended.json").read_text(encoding="utf-8"))
    return neuron_runtime.LoadedNeff(artefact, ended["told"]["inputs"], task.folder)


def profile_kernel(task: StepTask, artefact: Path) -> tuple[str, str]:
    """Return the profiler's name and its summary as printed; leave the full profile's tables in `out`.

    Raises:
        OSError: there is no profiler, or it failed.
    """
    tool = _find_tool(*PROFILERS)
    if tool is None:
        raise FileNotFoundError("no profiler: neither neuron-explorer nor neuron-profile is installed")
    neff, trace = task.folder / "profiled.neff", task.folder / "profile.ntff"
    shutil.copyfile(artefact, neff)
    # Profile the second execution: the first one loads libraries.
    _run_tool([tool, "capture", "-n", str(neff), "-s", str(trace), "--profile-nth-exec=2"], cwd=task.folder)
    traces = sorted(task.folder.glob("profile*.ntff"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise FileNotFoundError("%s captured nothing" % tool)
    view = [tool, "view", "-n", str(neff), "-s", str(traces[-1]), "--output-format", "summary-json"]
    printed = _run_tool(view, cwd=task.folder)
    if Path(tool).name == PROFILERS[0]:
        _leave_tables([*view[:-1], "parquet", "--output-file", "tables"], task)
    return Path(tool).name, printed


def _leave_tables(view: Sequence[str], task: StepTask) -> None:
    """Have the profiler write its tables, and leave those that home reads; older releases have none."""
    with contextlib.suppress(OSError):
        _run_tool(view, cwd=task.folder)
        for path in sorted((task.folder / "tables").rglob("*.parquet")):
            if path.name.partition(".")[0].partition("_")[0] in TABLES:
                shutil.copyfile(path, task.out / path.name)


def _parse_compiler_answer(answer: bytes) -> dict[str, Any]:
    """Parse the jailed compiler's answer; do not trust it, the kernel's Python may have written it."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(answer)
        if (
            isinstance(found, dict)
            and isinstance(found.get("neff"), str)
            and _is_name_list(found.get("inputs"))
        ):
            return {"neff": neuron_compiler.NEFF, "inputs": found["inputs"]}
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            error = found["error"]
            line = error.get("line")
            return {
                "error": {
                    "code": str(error.get("code"))[:64],
                    "message": str(error.get("message"))[-4000:],
                    "line": line if isinstance(line, int) and 0 <= line < 1 << 31 else 0,
                }
            }
    return {}


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name.isidentifier() for name in value)


def _compiler_variables(scratch: Path, task: StepTask) -> list[tuple[str, str]]:
    """The environment of the compiler, which reads it when it is imported."""
    size = str(neuron_runtime.LOGICAL_SIZE)
    return [
        ("NEURON_CC_FLAGS", "--logical-nc-config=" + size),
        (neuron_runtime.LOGICAL_VARIABLE, size),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", str(task.payload["request"]["target"])),
        ("NKI_DEBUG_INFO", "1"),  # profiles then name lines of the kernel
        ("NKI_ARTIFACTS_DIR", str(scratch / neuron_compiler.ARTEFACTS)),
    ]


def _list_devices() -> dict[str, Any]:
    """What neuron-ls prints: a list of devices or, in later releases, an object that has one."""
    tool = _find_tool("neuron-ls")
    found: Any = None
    if tool is not None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(_run_tool([tool, "--json-output"], cwd=Path("/")))
    fields = found if isinstance(found, dict) else {}
    devices = fields.get("neuron_devices") or fields.get("mlas") if fields else found
    counts = [
        item.get("nc_count", 0)
        for item in (devices if isinstance(devices, list) else [])
        if isinstance(item, dict)
    ]
    cores = sum(count for count in counts if isinstance(count, int))
    return {"cores": cores, "instance_type": str(fields.get("instance_type") or "")}


def _find_instance_type(listed: Mapping[str, Any]) -> str:
    for path in (*sorted(glob.glob(_SYSFS + "instance_type")), "/sys/devices/virtual/dmi/id/product_name"):  # noqa: PTH207
        if listed["instance_type"]:
            break
        with contextlib.suppress(OSError):
            text = Path(path).read_text(encoding="ascii", errors="replace").strip()
            if "." in text or "/dmi/" not in path:
                return text[:64].lower()
    return str(listed["instance_type"])[:64].lower()


def _profiler_version() -> str:
    tool = _find_tool(*PROFILERS)
    if tool is None:
        return ""
    with contextlib.suppress(OSError):
        first = (_run_tool([tool, "--version"], cwd=Path("/")).strip().splitlines() or [""])[0]
        return "%s %s" % (Path(tool).name, first[:150])
    return Path(tool).name


def _find_tool(*names: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *TOOLS])
    return next((found for found in (shutil.which(name, path=path) for name in names) if found), None)


def _tool_folders() -> list[str]:
    return [str(Path(sys.executable).parent), *TOOLS, "/usr/local/bin", "/usr/bin", "/bin"]


def _run_tool(command: Sequence[str], cwd: Path) -> str:
    """Run a vendor's tool and return its output.

    Raises:
        OSError: it failed; the message has the end of its output.
    """
    try:
        done = subprocess.run(
            list(command),
            cwd=cwd,
            env={
                **os.environ,
                neuron_runtime.LOGICAL_VARIABLE: str(neuron_runtime.LOGICAL_SIZE),
                "NEURON_RT_ENABLE_DGE_NOTIFICATIONS": "1",  # else there are no tables of DMA
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError("%s did not end within %d s" % (Path(command[0]).name, _TOOL_S)) from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
        raise OSError("%s ended with status %d: %s" % (Path(command[0]).name, done.returncode, said))
    return done.stdout.decode(errors="replace")
