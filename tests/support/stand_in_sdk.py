"""An environment with the stand-in for the vendor's SDK, and what its tools need, as a host has it."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import sysconfig
import venv
from pathlib import Path

SDK = Path(__file__).parent / "neuron_sdk"
SUMMARY = Path(__file__).parents[1] / "targets" / "nki" / "hosts" / "golden" / "neuron_explorer_2_30.json"


RELEASES = {
    # what is installed, from which folder, beside which modules
    "2.27": ({"neuronx-cc": "2.27.0"}, "packages_2_27", ("stand_in_neff.py", "spike.py")),
    "2.31": ({"nki": "0.5.0", "neuronx-cc": "2.31.1"}, "packages", ("stand_in_neff.py", "spike.py")),
    "2.33": ({"nki": "0.7.0", "neuronx-cc": "2.33.0"}, "packages_0_7", ("stand_in_neff.py",)),
}


def make_python(folder: Path, release: str = "2.31") -> Path:
    """Make an environment of the stand-in SDK with NumPy; return its interpreter.

    From 2.32 on, its runtime is another environment's (`make_runtime`).
    """
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    versions, source, modules = RELEASES[release]
    ours = Path(sysconfig.get_path("purelib"))
    for name in ("numpy", "numpy.libs", "ml_dtypes"):
        if (ours / name).exists():
            shutil.copytree(ours / name, packages / name, copy_function=_link_tree)
    shutil.copytree(SDK / source, packages, dirs_exist_ok=True)
    for module in modules:
        shutil.copy(SDK / module, packages)
    for name, version in versions.items():
        folder_of = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder_of.mkdir()
        (folder_of / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"


def make_runtime(home: Path) -> Path:
    """Make the stand-in's nrtpy in an environment of its own, where the documentation puts it; return
    `home`."""
    tag = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copytree(SDK / "packages_nrtpy", home / "nrtpy_venv" / "lib" / tag / "site-packages")
    return home


def _link_tree(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def make_tools(folder: Path) -> dict[str, str]:
    """Copy the stand-in's tools to a folder; return the variables with which they and the SDK work."""
    tools = shutil.copytree(SDK / "bin", folder)
    for tool in tools.iterdir():
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "NEURON_STAND_IN_LS": str(SDK / "ls_object.json"),
        "NEURON_STAND_IN_SUMMARY": str(SUMMARY),
    }
