"""Power cuts: a virtual machine that acknowledges events is killed, and its disk is looked at.

The guest is a kernel of the distribution (fetched with apt, or `--kernel` names a folder that one was
unpacked in), a file system with this Python and this program, and an empty ext4 disk. It appends events, one
to a commit, and writes a line to its serial port for each that was acknowledged. It is saved once, as it
appends, and each cut begins with it as it was then: after a random number of lines QEMU gets SIGKILL. What
was in the guest's memory is gone, as with the power; what it had flushed is on its disk. The disk is then
mounted here: every acknowledged event must be in a log that verifies. No KVM is needed. The host's page cache
outlives the guest, as the cache of a drive does that honours a flush.

`python -m benchmarks.faults.power_cuts HOME` is what the guest runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.scenario import Case, Report
from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun

ROOT = Path(__file__).resolve().parents[2]
GUEST_HOME = "/data/home"
DISK_BYTES = 128 << 20
WARM = 5
"""Events that a guest acknowledges before it is saved."""
MODULES = (
    "virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev", "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci", "block/virtio_blk",
)  # fmt: skip
INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for name in {modules}; do /bin/busybox insmod /$name.ko; done
/bin/busybox mount -t ext4 -o ro /dev/vda /root
/bin/busybox mount -t ext4 /dev/vdb /root/data
/bin/busybox mount -t proc proc /root/proc
/bin/busybox mount -t devtmpfs dev /root/dev
export PYTHONHOME={home} PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1
exec /bin/busybox chroot /root {python} -u -m benchmarks.faults.power_cuts {guest_home} >/dev/ttyS0 2>&1
"""


# --- the guest ---


def append_for_ever(home: Path) -> None:
    """Append for ever, and say of each event that it was acknowledged, and its hash."""
    with EventLog.open(home) as log:
        for number in count():
            for step in ScriptedRun(seed=number, rounds=4).steps():
                (item,) = log.append_now([NewEvent(f"run{number}", step.event)], blobs=step.blobs)
                print(f"ack {item.seq} {item.hash}", flush=True)


def list_guest_files() -> list[Path]:
    """Return every file that a process needs which does what the guest does."""
    code = (
        "import json, os, runpy, sys, tempfile; from pathlib import Path\n"
        "from benchmarks.faults import power_cuts as power; from state.events import RunPaused\n"
        "with tempfile.TemporaryDirectory() as home, power.EventLog.open(Path(home)) as log:\n"
        "    steps = power.ScriptedRun().steps()\n"
        "    for step in steps: log.append_now([power.NewEvent('r', step.event)], blobs=step.blobs)\n"
        "    mapped = [line.split()[-1] for line in open('/proc/self/maps')]\n"
        "    loaded = [getattr(m, '__file__', None) for m in list(sys.modules.values())]\n"
        "print(json.dumps(sorted({f for f in mapped + loaded if f and os.path.isfile(f)})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return [Path(name) for name in json.loads(done.stdout)]


# --- its disks ---


class Machine(NamedTuple):
    """What a guest is started with."""

    kernel: Path
    initrd: Path
    root: Path


def build_machine(folder: Path, kernel: Path) -> Machine:
    """Make the guest's memory disk and its root file system in `folder`."""
    image = next(iter(sorted((kernel / "boot").glob("vmlinuz-*"))))
    drivers = next(iter(sorted((kernel / "lib" / "modules").glob("*")))) / "kernel" / "drivers"
    root = folder / "root"
    python = Path(sys.executable).resolve()
    for path in [python, *list_guest_files()]:
        _copy(path, root)
    _copy_loader(python, root)
    for name in ("data", "proc", "dev", "tmp"):
        (root / name).mkdir(exist_ok=True)
    site = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    init = INIT.format(
        modules=" ".join(Path(name).name for name in MODULES), home=sys.base_prefix, path=f"{ROOT}:{site}",
        python=python, guest_home=GUEST_HOME,
    )  # fmt: skip
    busybox = Path(shutil.which("busybox") or "busybox")
    files = {"bin/busybox": busybox.read_bytes(), "init": init.encode()}
    files |= {f"{Path(name).name}.ko": (drivers / f"{name}.ko").read_bytes() for name in MODULES}
    (folder / "initrd").write_bytes(pack_cpio(files, ("bin", "proc", "dev", "root")))
    _make_ext4(folder / "root.img", 768 << 20, "-d", root)
    return Machine(image, folder / "initrd", folder / "root.img")


def _copy(path: Path, root: Path) -> None:
    """Copy a file to the same path below `root`, and as what links on the way to it call it."""
    for name in {path, path.resolve()}:
        target = root / name.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(path, target)


def _copy_loader(python: Path, root: Path) -> None:
    """Copy what the dynamic loader is asked for by name: itself, and libraries by the names programs know."""
    done = subprocess.run(["ldd", python], capture_output=True, text=True, check=True)
    for word in done.stdout.split():
        if word.startswith("/"):
            _copy(Path(word), root)
    for line in subprocess.run(
        ["ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        if path and (root / Path(path).resolve().relative_to("/")).exists():
            _copy(Path(path), root)
            assert name


def pack_cpio(files: dict[str, bytes], folders: tuple[str, ...]) -> bytes:
    """Return a cpio archive (newc) as the kernel unpacks it; all files may be executed."""
    entries = [(name, b"", 0o040755) for name in folders] + [
        (name, data, 0o100755) for name, data in files.items()
    ]
    out = bytearray()
    for number, (name, data, mode) in enumerate([*entries, ("TRAILER!!!", b"", 0)], start=1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def _make_ext4(path: Path, size: int, *options: object) -> None:
    with path.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", *map(str, options), path], check=True)


def fetch_kernel(folder: Path) -> Path:
    """Download the distribution's kernel for virtual machines and unpack it."""
    said = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=True
    )
    package = next(line.split()[1] for line in said.stdout.splitlines() if "Depends:" in line)
    subprocess.run(["apt-get", "download", package], check=True, cwd=folder, capture_output=True)
    subprocess.run(["dpkg", "-x", next(folder.glob("*.deb")), folder / "kernel"], check=True)
    return folder / "kernel"


# --- a cut ---


class Saved(NamedTuple):
    """A guest that appends: its memory, its disk at that moment, and what it had acknowledged."""

    state: Path
    disk: Path
    said: list[tuple[int, str]]


class Cut(NamedTuple):
    """One power cut: events acknowledged before it, how many of those are gone, and how many are stored."""

    acknowledged: int
    lost: int
    stored: int
    sound: bool


def cut_power(machine: Machine, saved: Saved, folder: Path, after: int) -> Cut:
    """Let a guest go on until it has acknowledged `after` more events, kill it and look at its disk."""
    folder.mkdir()
    disk = folder / "data.img"
    shutil.copyfile(saved.disk, disk)
    command = [*_qemu_command(machine, disk), "-incoming", f"exec:cat {saved.state}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as qemu:
        said, _ = _listen(qemu, lambda said: len(said) == after and qemu.kill())
    if len(said) < after:
        raise RuntimeError("the guest ended by itself")
    where = folder / "mounted"
    where.mkdir()
    subprocess.run(["mount", "-o", "loop", disk, where], check=True)
    try:
        return _check_disk(where / "home", [*saved.said, *said])
    finally:
        subprocess.run(["umount", where], check=True)
        disk.unlink()


def _qemu_command(machine: Machine, disk: Path) -> list[object]:
    return [
        "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "384",
        "-nographic", "-nodefaults", "-serial", "stdio", "-nic", "none", "-no-reboot",
        "-kernel", machine.kernel, "-initrd", machine.initrd, "-append", "console=ttyS0 quiet panic=-1",
        "-drive", f"file={machine.root},format=raw,if=virtio,readonly=on",
        "-drive", f"file={disk},format=raw,if=virtio,cache=writeback",
    ]  # fmt: skip


def start_guest(machine: Machine, folder: Path) -> Saved:
    """Start a guest and save it, with its disk, once it appends: cuts begin there, without a boot."""
    saved = Saved(folder / "state", folder / "started.img", [])
    _make_ext4(saved.disk, DISK_BYTES)
    monitor = folder / "monitor"
    command = [*_qemu_command(machine, saved.disk), "-monitor", f"unix:{monitor},server=on,wait=off"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as qemu:
        orders = threading.Thread(target=_save_guest, args=(monitor, saved.state))
        said, other = _listen(qemu, lambda said: len(said) == WARM and orders.start())
    if len(said) < WARM:
        raise RuntimeError("the guest ended by itself:\n" + "\n".join(other[-30:]))
    orders.join()
    saved.said.extend(said)
    return saved


def _save_guest(monitor: Path, state: Path) -> None:
    """Tell a machine to write its state to a file, and to end."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(monitor))
        for order in (f'migrate "exec:cat > {state}"', "quit"):
            line.sendall(f"{order}\n".encode())
        while line.recv(4096):  # until it has ended
            pass


def _listen(
    qemu: subprocess.Popen[bytes], heard: Callable[[list[tuple[int, str]]], object]
) -> tuple[list[tuple[int, str]], list[str]]:
    """Return what a guest acknowledges and what else it says, to the end: also what was on its way then."""
    said: list[tuple[int, str]] = []
    other: list[str] = []
    assert qemu.stdout is not None
    for line in qemu.stdout:
        found = parse_acknowledgement(line)
        if found is None:
            other.append(line.decode(errors="replace").rstrip())
        else:
            said.append(found)
            heard(said)
    return said, other


def parse_acknowledgement(line: bytes) -> tuple[int, str] | None:
    """Return number and hash of the event that a line acknowledges; a line that was cut off does not."""
    words = line.decode(errors="replace").split()
    whole = len(words) == 3 and words[0] == "ack" and len(words[2]) == 64 and line.endswith(b"\n")
    return (int(words[1]), words[2]) if whole else None


def _check_disk(home: Path, said: list[tuple[int, str]]) -> Cut:
    report = verify_log(home)
    with LogReader.open(home) as reader:
        there = {item.seq: item.hash for item in reader.read(limit=1_000_000)}
    lost = sum(there.get(seq) != hash_ for seq, hash_ in said)
    with EventLog.open(home, full_check=True):
        pass
    return Cut(len(said), lost, len(there), report.is_ok)


def find_obstacle() -> str | None:
    missing = [name for name in ("qemu-system-x86_64", "busybox", "mkfs.ext4") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        return f"needs root, and on PATH: {', '.join(missing) or 'nothing more'}"
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cuts", type=int, default=20, help="how many (%(default)s)")
    parser.add_argument("--kernel", type=Path, help="folder with boot/vmlinuz-* and lib/modules/*")


def run(options: argparse.Namespace, report: Report) -> None:
    """Cut the power of a guest again and again, `jobs` guests at a time."""
    draw = random.Random(options.seed or 0)
    after = [draw.randint(20, 400) for _ in range(options.cuts)]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        machine = build_machine(folder, options.kernel or fetch_kernel(folder))
        saved = start_guest(machine, folder)
        began = time.monotonic()
        folders = (folder / str(n) for n in range(len(after)))
        try:
            for count_, one in zip(
                after, pool.map(partial(cut_power, machine, saved), folders, after), strict=True
            ):
                report(make_case(count_, one, time.monotonic() - began))
        finally:
            pool.shutdown(cancel_futures=True)


def make_case(after: int, cut: Cut, seconds: float) -> Case:
    """`seconds` are those since the first cut began."""
    lost = f"{cut.lost} of {cut.acknowledged} acknowledged events lost" if cut.lost else ""
    wrong = lost or ("" if cut.sound else "the log does not verify")
    return Case("power cut", f"{after} events", "nothing lost", wrong, cut._asdict() | {"seconds": seconds})


def summarize(cases: Sequence[Case]) -> dict[str, Any]:
    figures = [case.figures for case in cases]
    counts = [one["acknowledged"] for one in figures]
    return {
        "cuts": len(cases),
        "acknowledged": {"sum": sum(counts), "min": min(counts), "max": max(counts)},
        "lost": sum(one["lost"] for one in figures),
        "sound": sum(one["sound"] for one in figures),
        "stored_beyond": max(one["stored"] - one["acknowledged"] for one in figures),
        "seconds_per_cut": figures[-1]["seconds"] / len(cases),
    }


def format_table(summary: Mapping[str, Any]) -> list[str]:
    counts = summary["acknowledged"]
    acknowledged = f"{counts['sum']:,} ({counts['min']} to {counts['max']} a cut)"
    cells = (summary["cuts"], acknowledged, summary["lost"], summary["sound"], summary["stored_beyond"])
    return [
        "| cuts | events acknowledged | of those lost | logs that verify | stored beyond them, at most |",
        "|---|---|---|---|---|",
        f"| {' | '.join(map(str, cells))} |",
        "",
        f"{summary['seconds_per_cut']:.0f} s a cut, without KVM.",
    ]


if __name__ == "__main__":
    append_for_ever(Path(sys.argv[1]))
