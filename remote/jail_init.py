"""The first code in a jail: gives up what the jailed code must not have, then runs one module's `main`.

Runs as `python -s -P -S -c <this file> CONFIG`, so it needs only the standard library. CONFIG is JSON:
`paths` (for sys.path), `module` and `argv` (whose `main` to run; no module: none), `limits` (see
`jail_backends.JailLimits`), `answer_fd` (one byte there says that the jail is built, before any jailed code
runs), `threads` (whether the code may start threads, and with them processes, up to its limit), `programs`
(whether it may run other programs in these) and `old_root` (where the host's root is still mounted, when this
is the first code in a root that we built).

The system-call filter is a second barrier behind the namespaces, and almost the only one of the weak jail: no
new processes, no sockets, no signals to others, no mounts. Denied calls fail with EPERM. The tables cover
x86-64 and AArch64 (Linux); elsewhere there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import platform
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

READY_BYTE = b"+"

STARVED_STATUS, OUT_OF_MEMORY_STATUS = 75, 76
"""A program ends with these if it lacked space, file handles or memory, or a disk failed under it."""

_PASSING_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)

_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVS, _DUMPABLE, _SECCOMP, _FILTER_MODE = 1, 38, 4, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
_DETACH, _REMOUNT_READ_ONLY, _CAPABILITY_VERSION = 2, 0x20 | 0x1, 0x20080522
_EXECUTING = frozenset({2, 3})  # the positions of execve and execveat in the tables below
_X32_BIT = 0x40000000  # the second system-call table of x86-64, which would bypass the numbers below

# Order: socket socketpair execve execveat kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo
# pidfd_send_signal ptrace process_vm_readv process_vm_writev unshare setns mount umount2 pivot_root chroot
# open_by_handle_at bpf userfaultfd perf_event_open io_uring_setup keyctl add_key request_key
_DENIED = {
    "x86_64": (
        0xC000003E,
        (41, 53, 59, 322, 62, 200, 234, 129, 297, 424, 101, 310, 311, 272, 308, 165, 166, 155, 161, 304,
         321, 323, 298, 425, 250, 248, 249),
        (56, 57, 58, 435),  # clone fork vfork clone3
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199, 221, 281, 129, 130, 131, 138, 240, 424, 117, 270, 271, 97, 268, 40, 39, 41, 51, 265,
         280, 282, 241, 425, 219, 217, 218),
        (220, 435),  # clone clone3
    ),
}  # fmt: skip


def _filter_program(arch: int, denied: tuple[int, ...]) -> bytes:
    """Classic BPF: kill on a foreign architecture, EPERM on a denied call, allow the rest."""
    checks = [(_JUMP_AT_LEAST, _X32_BIT), *((_JUMP_EQUAL, number) for number in denied)]
    code = [(_LOAD, 0, 0, _ARCH_OFFSET), (_JUMP_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, _NUMBER_OFFSET))
    # A jump skips the remaining checks and the `allow` behind them.
    code += [(op, len(checks) - index, 0, k) for index, (op, k) in enumerate(checks)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("HBBI", *line) for line in code)


def install_filter(*, threads: bool, programs: bool = False) -> bool:
    """Install the system-call filter; False where the machine is not in the tables or refuses it."""
    if platform.machine() not in _DENIED:
        return False
    arch, calls, creating = _DENIED[platform.machine()]
    denied = tuple(call for place, call in enumerate(calls) if not (programs and place in _EXECUTING))
    program = _filter_program(arch, denied if threads else denied + creating)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_DUMPABLE, 0, 0, 0, 0)  # hides this process from others of the same user
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(_SECCOMP, _FILTER_MODE, ctypes.byref(header), 0, 0)


def set_limits(limits: dict[str, int]) -> None:
    """Apply the resource limits, hard limits included, so that the jailed code cannot raise them."""
    table = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in table.items():
        _, ceiling = resource.getrlimit(kind)
        bounded = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(kind, (bounded, bounded))
    # One second between the signal that gives the reason and the kill that cannot be caught.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))


def leave_old_root(old_root: str) -> None:
    """Unmount the host's files, make our root read-only, give up every capability in our namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check_call(libc.umount2(old_root.encode(), _DETACH), "umount2")
    Path(old_root).rmdir()
    _check_call(libc.mount(None, b"/", None, _REMOUNT_READ_ONLY, None), "mount")
    nothing = ctypes.create_string_buffer(24)  # effective, permitted, inheritable: two words each, all zero
    _check_call(libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), nothing), "capset")


def _check_call(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{call} failed")


def main() -> None:
    """Read CONFIG, lock down, and become the module."""
    config = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if config["old_root"]:
        leave_old_root(config["old_root"])
    set_limits(config["limits"])
    install_filter(threads=config["threads"], programs=config["programs"])
    if not config["threads"]:
        # Libraries must not start threads when they are loaded: OpenBLAS treats the failure as fatal.
        os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    # Python 3.10 has no -P, so the folder it was started in is on the path.
    sys.path[:] = [*config["paths"], *filter(None, sys.path)]
    sys.argv = [config["module"], *config["argv"]]
    module = importlib.import_module(config["module"]) if config["module"] else None
    os.write(int(config["answer_fd"]), READY_BYTE)
    if module is not None:
        sys.exit(_run_main(module.main))


def _run_main(main_: Callable[[], int]) -> int:
    """Run a program; end with a status of its own if it lacked what the machine may have later."""
    try:
        return main_()
    except MemoryError:
        traceback.print_exc()
        return OUT_OF_MEMORY_STATUS
    except OSError as error:
        if error.errno not in _PASSING_ERRORS:
            raise
        traceback.print_exc()
    return STARVED_STATUS


if __name__ == "__main__":
    main()
