"""Kernels that reach for what is around them: the static rules refuse them, and behind those the jail holds.

What they find out, they tell in an error's message: the tests look for the secret in it. SECRET_FILE stands
for the path of a file of the user's.
"""

from __future__ import annotations

from state.model import Verdict
from tests.adversarial.model import Attack, Judged, body, broken, edit, expect_refusal

IMPORT, NAME, PRIVATE = (expect_refusal(f"forbidden_{kind}") for kind in ("import", "name", "attribute"))
RAISED = broken("kernel_exception")
UNKNOWN = broken("unknown_name")
EXIT = broken("kernel_exit")
NOTHING = broken("no_program")
GARBLED = broken("invalid_ir")
CORRECT: Judged = (Verdict.CORRECT, "profile", "")
UNDONE = broken("tensor_output_not_written_to", "rules")


def beside(*lines: str) -> str:
    """Return a correct kernel that does this first."""
    return edit(
        "silu", ("    m, n = x.shape\n", "".join(f"    {line}\n" for line in (*lines, "m, n = x.shape")))
    )


def telling(imports: str, found: str) -> str:
    """Return a kernel that tells what it found."""
    return body(f"import {imports}", f"raise ValueError(repr({found}))")


READING = (
    Attack("reading the environment", telling("os", "dict(os.environ)"), IMPORT, unruled=RAISED),
    Attack("reading home", telling("os", "open('SECRET_FILE').read()"), IMPORT, unruled=RAISED),
    Attack(
        "listing home", telling("os", "os.listdir('/root') + os.listdir('/home')"), IMPORT, unruled=RAISED
    ),
    Attack("reading accounts", body("raise ValueError(open('/etc/passwd').read())"), NAME, unruled=RAISED),
    Attack(
        "the environment of other processes",
        telling("glob", "[open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/environ')] or 1 / 0"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "the root of another process",
        telling("os", "open('/proc/1/root/SECRET_FILE').read()"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "memory of another process",
        telling("os", "os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR)"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "a link to a file outside",
        body(
            "import os",
            "os.symlink('SECRET_FILE', '/tmp/link')",
            "raise ValueError(open('/tmp/link').read())",
        ),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "descriptors left open",
        body(
            "import os",
            "found = []",
            "for fd in range(3, 64):",
            "    try:",
            "        found.append(os.readlink(f'/dev/fd/{fd}'))",
            "        found.append(os.pread(fd, 100, 0))",
            "    except OSError:",
            "        pass",
            "raise ValueError(repr(found))",
        ),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "writing beside the simulator",
        telling("nki_sim", "open(nki_sim.__file__, 'a').write('1 / 0')"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "NumPy's way to write a file",
        body("import numpy as np", "np.zeros(4).tofile('/tmp/x')"),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "memory at an address of its choice",
        body(
            "import numpy as np",
            "class Peek:",
            "    @property",
            "    def __array_interface__(self):",
            "        return {'data': (4096, False), 'shape': (8,), 'typestr': '|u1', 'version': 3}",
            "raise ValueError(np.array(Peek()))",
        ),
        NAME,
        unruled=NOTHING,
    ),
)

LEAVING = (
    Attack(
        "network",
        body("import socket", "socket.create_connection(('192.0.2.1', 80))"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack("a name server", telling("socket", "socket.gethostbyname('example.com')"), IMPORT, unruled=RAISED),
    Attack("a socket between processes", telling("socket", "socket.socketpair()"), IMPORT, unruled=RAISED),
    Attack(
        "a shell",
        body("import subprocess", "subprocess.run(['/bin/sh', '-c', 'true'], check=True)"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "a shell, by the simulator's own import",
        body("nki.os.execv('/bin/sh', ['sh', '-c', 'true'])"),
        UNKNOWN,
    ),
    Attack("fork bomb", body("import os", "while True:", "    os.fork()"), IMPORT, unruled=RAISED),
    Attack(
        "threads",
        body("import threading", "while True:", "    threading.Thread(target=print).start()"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack("a signal to the parent", body("import os", "os.kill(os.getppid(), 9)"), IMPORT, unruled=RAISED),
    Attack("a signal to everybody", body("import os", "os.kill(-1, 9)"), IMPORT, unruled=RAISED),
    Attack(
        "tracing another process",
        body("import ctypes", "libc = ctypes.CDLL(None)", "raise ValueError(libc.ptrace(16, 1, 0, 0))"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "raising its own limits",
        body("import resource", "resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack("another root", body("import os", "os.chroot('/tmp')"), IMPORT, unruled=RAISED),
    Attack("a fault in memory", body("import ctypes", "ctypes.string_at(0)"), IMPORT, unruled=NOTHING),
    Attack("sys.exit(0)", body("import sys", "sys.exit(0)"), IMPORT, unruled=EXIT),
    Attack("SystemExit(0)", body("raise SystemExit(0)"), NAME, unruled=EXIT),
    Attack("os._exit(0)", body("import os", "os._exit(0)"), IMPORT, unruled=NOTHING),
    Attack("KeyboardInterrupt", body("raise KeyboardInterrupt"), NAME, unruled=EXIT),
)

TAMPERING = (
    Attack(
        "the recorder, by gc",
        body(
            "import gc",
            "for item in gc.get_objects():",
            "    if type(item).__name__ == 'Recorder':",
            "        item.__dict__.clear()",
        ),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "the recorder, by frames",
        body(
            "import sys",
            "frame = sys._getframe()",
            "while frame:",
            "    for item in list(frame.f_locals.values()):",
            "        if type(item).__name__ == 'Recorder':",
            "            item.__dict__.clear()",
            "    frame = frame.f_back",
        ),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "the caller's frame, by a generator",
        body(
            "def look():",
            "    yield walker.gi_frame.f_back.f_back",
            "walker = look()",
            "frame = next(walker)",
            "raise ValueError(frame.f_locals['recorder'])",
        ),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "the recorder, by the simulator's own import",
        body("nl.context.current().clear()"),
        UNKNOWN,
    ),
    Attack(
        "instructions taken off the record",
        edit(
            "silu",
            (
                "    return out",
                (
                    "    import gc\n"
                    "    for item in gc.get_objects():\n"
                    "        if type(item).__name__ == 'array' and len(item) > 50:\n"
                    "            del item[len(item) // 2 :]\n    return out"
                ),
            ),
        ),
        IMPORT,
        unruled=GARBLED,
    ),
    Attack(
        "the simulator's costs patched",
        beside(
            "import nki_sim.operators.costs as costs",
            "for name in list(vars(costs)):",
            "    if callable(getattr(costs, name)):",
            "        setattr(costs, name, lambda *a, **k: 0)",
        ),
        IMPORT,
        unruled=CORRECT,
    ),
    Attack(
        "the simulator's instructions replaced",
        beside("nisa.activation = nisa.tensor_copy"),
        expect_refusal("forbidden_statement"),
        unruled=broken("forbidden_statement"),
    ),
    Attack(
        "NumPy patched",
        beside(
            "import numpy as np",
            "for owner, name in (np.linalg, 'norm'), (np, 'allclose'):",
            "    setattr(owner, name, lambda *a, **k: 0.0)",
        ),
        IMPORT,
        unruled=CORRECT,
    ),
    Attack(
        "the timer patched",
        beside(
            "import time",
            "for name in ('perf_counter', 'monotonic'):",
            "    setattr(time, name, lambda: 0.0)",
        ),
        IMPORT,
        unruled=CORRECT,
    ),
    Attack(
        "modules replaced for who comes next",
        beside("import sys", "sys.modules['nki_sim.protocol'] = sys.modules['json'] = None"),
        IMPORT,
        unruled=CORRECT,
    ),
    Attack(
        "an attribute looked up by a text it puts together",
        body("raise ValueError(getattr(x, '__cla' + 'ss__'))"),
        NAME,
        unruled=RAISED,
    ),
    Attack("code from a text", body("exec('import os')"), NAME, unruled=UNDONE),
    Attack(
        "luck with memory that nobody wrote to",
        beside(
            "import numpy as np",
            "lucky = any(np.ndarray((n,), dtype=np.int64).any() for n in (500, 5000, 50000) * 9)",
            "assert not lucky",
        ),
        IMPORT,
        unruled=CORRECT,
    ),
    Attack(
        "luck with a hash",
        beside("assert isinstance(hash('abc') + hash(object()), int)"),
        NAME,
        unruled=CORRECT,
    ),
    Attack(
        "luck with an address",
        beside("assert id(x)"),
        NAME,
        unruled=CORRECT,
    ),
    Attack(
        "attributes set by functools.wraps",
        beside("import functools", "functools.wraps(lambda: 0, assigned=('__doc__',))(nl)"),
        NAME,
        unruled=CORRECT,
    ),
)

ATTACKS = (*READING, *LEAVING, *TAMPERING)
