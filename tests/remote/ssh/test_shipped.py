"""The archives that go to hosts: the same bytes each time, whole, and in words that Python 3.10 knows."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable

import pytest

from remote.ssh import step_archives
from remote.ssh.worker_archive import build_worker_archive
from targets.registry import load_host_parts

PACKAGES = sorted(
    {name for parts in load_host_parts() for device in parts.devices.values() for name in device.packages}
)


def read_archive(name: str) -> step_archives.StepArchive:
    make: Callable[..., step_archives.StepArchive] = step_archives.package_archive
    return step_archives.judge_archive() if name == "judge" else make(name)


@pytest.mark.parametrize("name", ["judge", *PACKAGES])
def test_an_archive_is_the_same_each_time(name):
    first = read_archive(name)
    step_archives.judge_archive.cache_clear()
    step_archives.package_archive.cache_clear()
    assert read_archive(name) == first


def test_what_every_host_needs_is_written_for_python_3_10():
    with zipfile.ZipFile(io.BytesIO(step_archives.judge_archive().data)) as archive:
        for name in archive.namelist():
            ast.parse(archive.read(name), filename=name, feature_version=(3, 10))


@pytest.mark.parametrize("name", ["judge", *PACKAGES])
def test_every_module_of_an_archive_can_be_imported_from_it_alone(name, tmp_path):
    with zipfile.ZipFile(io.BytesIO(read_archive(name).data)) as opened:
        opened.extractall(tmp_path)
        names = [name for name in opened.namelist() if name.endswith(".py")]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    modules = [name for name in modules if not name.endswith("__main__")]
    worker = tmp_path.with_suffix(".pyz")  # steps have it too
    worker.write_bytes(build_worker_archive().data)
    # Without what the project has beside NumPy: a library that hosts lack would be noticed.
    # Modules that stand in for the vendor's put another one, without a file, in their place.
    script = (
        "import sys, importlib\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'pydantic', 'structlog', 'click', 'libcst', 'asyncssh'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(worker)!r}]\n"
        f"for name in {modules!r}:\n"
        f"    file = getattr(importlib.import_module(name), '__file__', {str(tmp_path)!r})\n"
        f"    assert file.startswith({str(tmp_path)!r}), name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
