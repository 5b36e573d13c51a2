"""Locks, names and the simulator's wheel: what is locked is what is declared, and no name collides."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = tomllib.loads((ROOT / "packaging/nki_sim/pyproject.toml").read_text(encoding="utf-8"))
ROOMS = {
    "state",
    "stability",
    "agent_core",
    "prompts",
    "seeds",
    "remote",
    "nki_sim",
    "targets",
    "daemon",
    "agentctl",
}
PIN = re.compile(
    r"^([a-z0-9][a-z0-9.-]*)==(\S+)(?: ; (.+?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)

RUNTIME = ("requirements.lock", [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["build"]])
DEV = (
    "requirements-dev.lock",
    [*RUNTIME[1], *PROJECT["dependency-groups"]["dev"], *PROJECT["dependency-groups"]["bench"]],
)
LOCKS = [RUNTIME, DEV]


def pins(lock: str, python: str, platform: str) -> dict[str, str]:
    """Return what a lock installs there: name to version; a name pinned twice is an error."""
    found: dict[str, str] = {}
    where = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    for name, version, marker, _ in PIN.findall((ROOT / lock).read_text(encoding="utf-8")):
        if not marker or Marker(marker).evaluate(where):
            assert name not in found
            found[name] = version
    return found


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(("lock", "declared"), LOCKS)
def test_a_lock_satisfies_the_declared_bounds(lock, declared, python, platform):
    locked = pins(lock, python, platform)
    for requirement in map(Requirement, declared):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} has {version}"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_development_lock_adds_to_the_other_and_changes_nothing(python):
    assert pins(RUNTIME[0], python, "linux").items() < pins(DEV[0], python, "linux").items()


@pytest.mark.parametrize(("lock", "declared"), LOCKS)
def test_a_lock_is_pins_with_hashes_and_comments_alone(lock, declared):
    text = (ROOT / lock).read_text(encoding="utf-8")
    rest = [line for line in PIN.sub("", text).splitlines() if line and not line.startswith("    #")]
    assert rest == []
    assert "://" not in text


def test_every_declared_dependency_has_both_bounds():
    for requirement in map(Requirement, DEV[1]):
        assert {spec.operator for spec in requirement.specifier} == {">=", "<"}, requirement


def test_no_installed_distribution_provides_a_package_named_like_a_room():
    rivals = {
        (distribution.name, file.parts[0])
        for distribution in metadata.distributions()
        if distribution.name != "nki-kernel-agent"
        for file in distribution.files or ()
        if file.parts[0].removesuffix(".py") in ROOMS
    }
    assert rivals == set()


def test_the_project_names_its_three_programs_and_refuses_upload():
    assert set(PROJECT["project"]["scripts"]) == {"agentd", "agentctl", "nki-sim"}
    assert "Private :: Do Not Upload" in PROJECT["project"]["classifiers"]


def test_the_simulators_wheel_asks_for_what_the_project_asks_for():
    sim, project = WHEEL["project"], PROJECT["project"]
    assert set(sim["dependencies"]) <= set(project["dependencies"])
    assert sim["scripts"].items() <= project["scripts"].items()
    assert (sim["version"], sim["requires-python"]) == (project["version"], project["requires-python"])


def test_the_simulator_builds_as_a_wheel_that_holds_nothing_else(tmp_path):
    for part in ("nki_sim", "packaging"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "build"))
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path / "packaging/nki_sim", check=True, capture_output=True
    )
    (wheel,) = (tmp_path / "packaging/nki_sim").glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    tracked = [path for path in (ROOT / "nki_sim").rglob("*") if path.suffix in {".py", ".json", ".typed"}]
    assert sorted(names) == sorted(str(path.relative_to(ROOT)) for path in tracked)


def licences(name: str) -> list[str]:
    """Return the licences that an installed package says it has, any of which may be chosen."""
    about = metadata.metadata(name)
    said = about.get("License-Expression") or about.get("License") or ""
    named = [item for item in about.get_all("Classifier", []) if item.startswith("License")]
    return re.split(r"\s+OR\s+", said) if said else named


def test_no_locked_package_has_a_licence_that_reaches_into_the_project():
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    names = pins(DEV[0], here, sys.platform)
    told = {name: licences(name) for name in names}
    assert all(told.values())
    strict = re.compile(r"\b[AL]?GPL|GNU|\bSSPL|\bBUSL")
    assert [name for name, each in told.items() if all(strict.search(one) for one in each)] == []
