"""The calibrations of a home: one file each, which runs name. The log says where they came from."""

from __future__ import annotations

from pathlib import Path

from state.atomic_files import atomic_write
from state.errors import StateError
from state.model import DeviceCalibration

FOLDER = "calibrations"


class UnknownCalibration(StateError):  # noqa: N818 - the names of this tree say what happened
    """The home has no calibration of this name, or its file is damaged."""

    code = "unknown_calibration"


def write_calibration(home: Path, found: DeviceCalibration) -> Path:
    """Keep a calibration under its name, in the place of an older one."""
    path = home / FOLDER / f"{found.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_text(found.model_dump_json(indent=1), encoding="utf-8")
    return path


def list_calibrations(home: Path) -> list[str]:
    """Return the names of a home's calibrations, sorted."""
    return sorted(path.stem for path in (home / FOLDER).glob("*.json"))


def read_calibration(home: Path, name: str) -> DeviceCalibration:
    """Return the calibration of this name.

    Raises:
        UnknownCalibration: there is none, or its file is damaged.
    """
    names = list_calibrations(home)
    if name not in names:
        known = ", ".join(names) or "none: `agentctl calibrate --host HOST` makes one"
        raise UnknownCalibration(f"no calibration {name!r} in {home}; there are {known}")
    path = home / FOLDER / f"{name}.json"
    try:
        return DeviceCalibration.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        text = f"{path} is damaged; repeat `agentctl calibrate --name {name}`: {error}"
        raise UnknownCalibration(text) from error
