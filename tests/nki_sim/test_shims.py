"""The folder that `nki-sim path` prints: imports work, a real installation wins unless told otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nki_sim

SHIMS = Path(nki_sim.__file__).parent / "shims"
ROOT = Path(nki_sim.__file__).parents[1]


def run_python(code: str, *paths: Path, folder: Path | None = None, **variables: str) -> str:
    """What a fresh interpreter prints with these folders on its path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NKI_", "PYTHON"))}
    found = {**inherited, "PYTHONPATH": os.pathsep.join(str(path) for path in (*paths, ROOT)), **variables}
    argv = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=found, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


IMPORTS = {
    "nki": (
        "import nki, nki.language as nl, nki.isa as nisa;"
        "print(hasattr(nl, 'REAL'), hasattr(nisa, 'REAL'), callable(nki.jit))"
    ),
    "neuronxcc": (
        "import neuronxcc.nki as nki, neuronxcc.nki.language as nl, neuronxcc.nki.isa as nisa;"
        "from neuronxcc.nki.language import par_dim;"
        "print(hasattr(nl, 'REAL'), hasattr(nisa, 'REAL'), callable(nki.jit))"
    ),
}

SIMULATED, REAL = "False False True", "True True True"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Packages as an installation has them."""
    for place, name in (("nki", "nki"), ("neuronxcc/nki", "neuronxcc.nki")):
        package = tmp_path / "site" / place
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("def jit(function): return function\n")
        (package / "language.py").write_text(f"REAL = {name!r}\npar_dim = None\n")
        (package / "isa.py").write_text(f"REAL = {name!r}\n")
    (tmp_path / "site/neuronxcc/__init__.py").touch()
    return tmp_path / "site"


@pytest.mark.parametrize("name", IMPORTS)
def test_kernels_imports_work(name: str) -> None:
    assert run_python(IMPORTS[name], SHIMS) == SIMULATED


@pytest.mark.parametrize("name", IMPORTS)
def test_a_real_installation_further_on_the_path_wins(name: str, real: Path) -> None:
    assert run_python(IMPORTS[name], SHIMS, real) == REAL


@pytest.mark.parametrize("name", IMPORTS)
def test_the_simulator_can_be_put_in_front(name: str, real: Path) -> None:
    for value, simulated in (("1", True), ("0", False), ("", False)):
        found = run_python(IMPORTS[name], SHIMS, real, NKI_SIM_FORCE=value)
        assert found == (SIMULATED if simulated else REAL)


@pytest.mark.parametrize("name", IMPORTS)
def test_a_folder_that_only_carries_the_name_is_no_installation(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert run_python(IMPORTS[name], SHIMS, tmp_path, folder=tmp_path) == SIMULATED


BOTH = """
import nki
import nki.language as nl
import neuronxcc.nki
import neuronxcc.nki.language as old


def test_it():
    assert nl.exp is not None and old.exp is not None
    assert nki is not neuronxcc.nki
"""


def test_both_namespaces_work_in_one_process_and_under_pytest(tmp_path: Path) -> None:
    test = tmp_path / "test_both.py"
    test.write_text(BOTH)
    options = ["-q", "-p", "no:asyncio", "-p", "no:cacheprovider", str(test)]
    code = f"import sys, pytest; sys.exit(pytest.main({options!r}))"
    assert "1 passed" in run_python(code, SHIMS, folder=tmp_path)


def test_scripts_find_the_level_that_the_legacy_package_adds_to_logging() -> None:
    code = (
        "import neuronxcc.nki, logging; logging.disable(logging.OFF); print(logging.OFF > logging.CRITICAL)"
    )
    assert run_python(code, SHIMS) == "True"
