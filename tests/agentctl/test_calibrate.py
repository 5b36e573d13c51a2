"""`agentctl calibrate` against a real SSH server whose device is hidden: only its times are seen.

A full run calibrates one device; what fits learn of the others is tested without a server. All of them:

    SWEEP=all pytest --all tests/agentctl/test_calibrate.py
"""

from __future__ import annotations

import hashlib
import json

import pytest

from daemon import exits
from state.calibrations import list_calibrations, read_calibration
from targets.nki.calibration.micro_kernels import calibration_kernels
from tests.support.sshd import Sshd
from tests.support.stand_in_sdk import make_python, make_tools
from tests.support.sweeps import sample_sweep
from tests.targets.nki.calibration.hidden_devices import HIDDEN, measure_all

DEVICES = sample_sweep(
    ("other descriptor costs", "spills where the table fits", "other switches of the SDK"), 1, seed=29
)
KERNELS = 40

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.needs("sshd", package="openssh-server"),
]


@pytest.fixture(scope="module", params=DEVICES)
def server(request, tmp_path_factory):
    """A host with the stand-in SDK, whose device takes what a hidden simulator says."""
    folder = tmp_path_factory.mktemp("host")
    python = make_python(folder / "sdk")
    times = {
        hashlib.sha256(kernel.source.encode()).hexdigest(): one.measured_ms
        for kernel, one in zip(calibration_kernels(), measure_all(HIDDEN[request.param]), strict=True)
    }
    (folder / "times.json").write_text(json.dumps(times))
    environment = {**make_tools(folder / "tools"), "NEURON_STAND_IN_TIMES": str(folder / "times.json")}
    with Sshd(folder / "sshd", environment=environment) as one:
        yield one, python


@pytest.fixture
def address(server, ctl, home, tmp_path, monkeypatch) -> str:
    """A trusted host, configured with the SDK's interpreter."""
    one, python = server
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "config").write_text(one.ssh_config.read_text())
    name = one.host().address
    said = ctl("host", "trust", name).err
    assert ctl("host", "trust", name, "--yes", said.split("--yes ")[1].split()[0]).status == exits.OK
    (home / "config.toml").write_text(
        f'[run]\nhosts = [{{ address = "{name}", python = "{python}" }}]\n[daemon]\nallow_weak_jail = true\n'
    )
    return name


def test_a_host_is_calibrated_and_the_result_is_kept_under_the_name_of_its_sdk(ctl, home, address):
    found = ctl("calibrate", "--host", address, "--kernels", str(KERNELS), "--json")
    assert found.status == exits.OK, found.err
    said = found.json
    assert said["name"] == "trn2@2.31"
    assert (len(said["kernels"]), said["failed"]) == (KERNELS, {})
    assert said["left_out_percent"] <= 10
    assert list_calibrations(home) == ["trn2@2.31"]
    kept = read_calibration(home, "trn2@2.31")
    assert (kept.host, kept.target) == (address, "trn2")
    errors = [abs(one.after_ms / one.measured_ms - 1) for one in kept.kernels if one.after_ms]
    before = [abs(one.before_ms / one.measured_ms - 1) for one in kept.kernels if one.before_ms]
    assert sum(errors) < 0.5 * sum(before)
    (waiting,) = (home / "inbox").glob("*.json")
    assert json.loads(waiting.read_text())["verb"] == "calibrate"


def test_a_host_without_a_device_teaches_nothing(ctl, home, server, address):
    (home / "config.toml").write_text(f'[run]\nhosts = ["{address}"]\n')
    found = ctl("calibrate", "--host", address, "--kernels", "10")
    assert found.status == exits.FAILURE
    assert "has no device" in found.err
    assert list_calibrations(home) == []
