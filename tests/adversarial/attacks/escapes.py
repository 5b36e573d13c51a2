"""Kernels that try the less trodden ways out of the jail, each of which must be closed.

Where one is open the kernel goes on to be correct, so that the verdict shows which it was.
"""

from __future__ import annotations

from tests.adversarial.attacks.walls import IMPORT, NOTHING, RAISED, beside
from tests.adversarial.model import Attack, Judged, body, endless

CALLS = (
    ("a ring of system calls that no filter sees", 425, "8, buffer"),
    ("keys of the session", 250, "0, -3, 0"),
    ("a key of its own", 248, "b'user', b'name', b'data', 4, -3"),
    ("memory of the parent read", 310, "libc.getppid(), 0, 0, 0, 0, 0"),
    ("another name space", 272, "0x10000000"),
    ("joining a name space", 308, "0, 0"),
    ("a program in the kernel", 321, "0, 0, 0"),
    ("faults of pages taken over", 323, "0"),
    ("counters of the processor", 298, "buffer, 0, -1, -1, 0"),
    ("a file by its handle", 304, "-100, buffer, 0"),
    ("a mount", 165, "0, b'/tmp', b'tmpfs', 0, 0"),
    ("a signal by a descriptor", 424, "0, 9, 0, 0"),
    ("a thread by its new name", 435, "buffer, 88"),
)


def call(number: int, arguments: str) -> str:
    """Return a kernel that is correct where a system call of x86-64 is let through, and raises where not."""
    return beside(
        "import ctypes",
        "libc = ctypes.CDLL(None, use_errno=True)",
        "buffer = ctypes.create_string_buffer(4096)",
        f"if libc.syscall({number}, {arguments}) == -1 and ctypes.get_errno() == 1:",
        "    raise PermissionError('held')",
    )


def attempt(imports: str, *lines: str) -> str:
    """Return a kernel that does this first, and is correct where nothing holds it."""
    return beside(f"import {imports}", *lines)


WAYS: tuple[tuple[str, str, Judged], ...] = (
    (
        "a program run from memory",
        attempt(
            "os",
            "fd = os.memfd_create('x')",
            "os.write(fd, b'#!/bin/sh\\n')",
            "os.execve(fd, ['x'], {})",
        ),
        RAISED,
    ),
    ("shared memory", attempt("os", "open('/dev/shm/x', 'w').write('x')"), RAISED),
    (
        "an abstract socket",
        attempt("socket", "socket.socket(socket.AF_UNIX).bind('\\0name')"),
        RAISED,
    ),
    ("a core dump", attempt("os", "os.abort()"), NOTHING),
    (
        "a grandchild in a session of its own",
        attempt("os", "if os.fork() == 0:", "    os.setsid()", "    os.fork()"),
        RAISED,
    ),
    (
        "a process by another call",
        attempt("os", "os.posix_spawn('/bin/true', ['true'], {})"),
        RAISED,
    ),
    (
        "a signal ignored that says to stop",
        body("import signal", "signal.signal(signal.SIGXCPU, signal.SIG_IGN)", "while True: pass"),
        endless("cpu_limit"),
    ),
    (
        "a priority of its own",
        attempt("os", "os.setpriority(os.PRIO_PROCESS, 0, -20)"),
        RAISED,
    ),
    (
        "more memory than allowed",
        attempt("resource", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"),
        RAISED,
    ),
    (
        "more processes than allowed",
        attempt("resource", "resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))"),
        RAISED,
    ),
    ("a file system made writable", attempt("os", "os.mkdir('/usr/x')"), RAISED),
    ("sleep", body("import time", "time.sleep(10 ** 6)"), endless("asleep")),
    (
        "a lock that nobody opens",
        body("import threading", "lock = threading.Lock()", "while True: lock.acquire()"),
        endless("asleep"),
    ),
    (
        "waiting for a signal that nobody sends",
        body("import signal", "while True: signal.pause()"),
        endless("asleep"),
    ),
    (
        "a pattern that takes for ever",
        body("import re", "re.match('(a*)*b', 'a' * 200)"),
        endless("cpu_limit"),
    ),
    (
        "a pickle that runs a program",
        attempt(
            "pickle",
            "if pickle.loads(b\"cos\\nsystem\\n(S'true'\\ntR.\"): raise PermissionError('held')",
        ),
        RAISED,
    ),
    (
        "code in an archive",
        attempt("zipfile", "zipfile.ZipFile('/tmp/x.zip', 'w')"),
        RAISED,
    ),
    (
        "C compiled by NumPy",
        attempt("numpy.f2py as f2py", "if f2py.compile('end'): raise PermissionError('held')"),
        RAISED,
    ),
    ("a file of the user's, by NumPy", attempt("numpy as np", "np.load('SECRET_FILE')"), RAISED),
    (
        "a file mapped by NumPy",
        attempt("numpy as np", "np.memmap('/tmp/x', mode='w+', shape=8)"),
        RAISED,
    ),
    (
        "accounts read by NumPy",
        attempt("numpy as np", "raise ValueError(bytes(np.fromfile('/etc/passwd', np.uint8)))"),
        RAISED,
    ),
    (
        "a library loaded by NumPy",
        attempt("numpy as np", "np.ctypeslib.load_library('none', '/tmp')"),
        RAISED,
    ),
    (
        "helpers of NumPy's tests",
        attempt("numpy.testing as t", "t.measure('1', 1) or t.rundocs('/etc/passwd')"),
        RAISED,
    ),
)

ATTACKS = (
    *(
        Attack(technique, call(number, arguments), IMPORT, unruled=RAISED)
        for technique, number, arguments in CALLS
    ),
    *(Attack(technique, kernel, IMPORT, unruled=unruled) for technique, kernel, unruled in WAYS),
)
"""The numbers are those of x86-64; on another machine the calls are others, and refused for that."""
