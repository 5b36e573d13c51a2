"""The system-call filter of a kernel's process: no processes, no files to write, nothing of other processes.

It stands behind the jail's own filter (`remote.jail_init`), which denies programs, sockets, signals, `ptrace`
and the like to everything in the jail; both apply. Threads are allowed only to kernels that use OpenMP.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_NO_NEW_PRIVS, _SECCOMP, _FILTER_MODE = 38, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_NUMBER, _ARCH, _FIRST_ARGUMENT, _X32_BIT = 0, 4, 16, 0x40000000
_CLONE_THREAD = 0x10000

# architecture; clone; clone3; calls that are denied: fork vfork sched_setaffinity setpriority prlimit64
# setrlimit memfd_create shmget shmat mq_open msgget semget timer_create setitimer alarm mlockall personality
_CALLS = {
    "x86_64": (0xC000003E, 56, 435,
               (57, 58, 203, 141, 302, 160, 319, 29, 30, 240, 68, 64, 222, 38, 37, 151, 135)),
    "aarch64": (0xC00000B7, 220, 435,
                (122, 140, 261, 164, 279, 194, 196, 180, 186, 190, 107, 103, 230, 92)),
}  # fmt: skip


def install_kernel_filter(*, threads: bool) -> bool:
    """Install the filter for this process and its threads; False where the machine is not in the table."""
    if platform.machine() not in _CALLS:
        return False
    arch, clone, clone3, denied = _CALLS[platform.machine()]
    code = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    for number in denied:
        code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    # glibc falls back to clone, whose flags a filter can read.
    code += [(_JUMP_EQUAL, 0, 1, clone3), (_RETURN, 0, 0, _ENOSYS)]
    code += [(_JUMP_EQUAL, 1, 0, clone), (_RETURN, 0, 0, _ALLOW)]
    if threads:
        code += [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_JUMP_SET, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW)]
    code += [(_RETURN, 0, 0, _EPERM)]
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    text = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(_SECCOMP, _FILTER_MODE, ctypes.byref(header), 0, 0)
