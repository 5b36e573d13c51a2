"""The archives that go to hosts: the same bytes each time, whole, and in words that Python 3.10 knows."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile

import pytest

from remote.ssh import step_archives

ARCHIVES = [step_archives.judge_archive, step_archives.simulator_archive]


@pytest.mark.parametrize("archive", ARCHIVES, ids=["judge", "simulator"])
def test_an_archive_is_the_same_each_time(archive):
    first = archive()
    archive.cache_clear()
    assert archive() == first


def test_what_every_host_needs_is_written_for_python_3_10():
    with zipfile.ZipFile(io.BytesIO(step_archives.judge_archive().data)) as archive:
        for name in archive.namelist():
            ast.parse(archive.read(name), filename=name, feature_version=(3, 10))


@pytest.mark.parametrize("archive", ARCHIVES, ids=["judge", "simulator"])
def test_every_module_of_an_archive_can_be_imported_from_it_alone(archive, tmp_path):
    with zipfile.ZipFile(io.BytesIO(archive().data)) as opened:
        opened.extractall(tmp_path)
        names = [name for name in opened.namelist() if name.endswith(".py")]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    modules = [name for name in modules if not name.endswith("__main__")]
    # Without what the project has beside NumPy: a library that hosts lack would be noticed.
    script = (
        "import sys, importlib\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'pydantic', 'structlog', 'click', 'libcst', 'asyncssh'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"for name in {modules!r}:\n"
        f"    assert importlib.import_module(name).__file__.startswith({str(tmp_path)!r}), name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
