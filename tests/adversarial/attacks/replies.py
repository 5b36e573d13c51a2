"""Kernels that answer in the tracer's place: text, broken replies, and programs of their own making."""

from __future__ import annotations

from state.model import Verdict
from tests.adversarial.attacks.walls import GARBLED, IMPORT, NOTHING, beside
from tests.adversarial.model import Attack, body, broken, edit, endless

FD = "int(sys.argv[-1])"

REPLIES = (
    Attack(
        "a verdict printed on standard output",
        beside("import os", """os.write(1, b'{"verdict": "correct", "latency_ms": 0.001}')""", "os._exit(0)"),
        IMPORT,
        unruled=NOTHING,
    ),
    Attack(
        "a reply of its own: text",
        body("import os, sys", f"os.write({FD}, b'correct')", "os._exit(0)"),
        IMPORT,
        unruled=GARBLED,
    ),
    Attack(
        "a reply of its own: half a header",
        body("import os, sys", f"os.write({FD}, b'NKISIMRPP')", "os._exit(0)"),
        IMPORT,
        unruled=GARBLED,
    ),
    Attack(
        "a reply of its own: pickled, with __reduce__",
        body(
            "import os, sys, pickle",
            "class Bomb:",
            "    def __reduce__(self):",
            "        return os.system, ('true',)",
            f"os.write({FD}, pickle.dumps(Bomb()))",
            "os._exit(0)",
        ),
        IMPORT,
        unruled=GARBLED,
    ),
    Attack(
        "something before the reply",
        beside("import os, sys", f"os.write({FD}, b'x')"),
        IMPORT,
        unruled=GARBLED,
    ),
    Attack(
        "something behind the reply",
        beside("import atexit, os, sys", f"spare = os.dup({FD})", "atexit.register(os.write, spare, b'x')"),
        IMPORT,
        unruled=GARBLED,
    ),
    Attack(
        "no reply: its descriptor closed",
        beside("import os, sys", f"os.close({FD})"),
        IMPORT,
        unruled=NOTHING,
    ),
    Attack(
        "a reply without end",
        body("import os, sys", "for _ in range(64):", f"    os.write({FD}, bytes(1 << 20))", "os._exit(0)"),
        IMPORT,
        unruled=broken("program_too_large"),
    ),
)

FORGED = """
import os, sys
from nki_sim import protocol
from nki_sim.forms import ArraySpec
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program import wire
import json, struct
source = SOURCE
spec = ArraySpec((256, 2048), "float32")
size = struct.calcsize("<8sHI")
data = trace_bytes(source, args=[spec], target=TARGET)
header, columns = wire.unpack(data)
columns = {name: bytes(part) for name, part in columns.items()}
CHANGE
os.write(int(sys.argv[-1]), protocol.program_reply(wire.pack(header, columns)))
os._exit(0)
"""


def forge_reply(change: str, target: str = "trn2") -> str:
    """Return a kernel that answers with a program of its own making: a correct one, changed."""
    text = (
        FORGED.replace("SOURCE", repr(edit("silu"))).replace("TARGET", repr(target)).replace("CHANGE", change)
    )
    return body(*text.strip().splitlines())


FIRST_FORM = "header['forms'][0]"
HOSTILE = (
    ("numbers of forms that are not there", "columns['forms'] = b'\\xff' * len(columns['forms'])"),
    ("numbers of tensors that are not there", "columns['tensors'] = b'\\xff' * len(columns['tensors'])"),
    ("offsets before the tensor", "columns['offsets'] = b'\\xff' * len(columns['offsets'])"),
    (
        "offsets behind the tensor",
        "columns['offsets'] = b'\\x00\\x00\\x00\\x7f' * (len(columns['offsets']) // 4)",
    ),
    ("a column cut short", "columns['offsets'] = columns['offsets'][:-8]"),
    ("a tensor of 2 ** 60 elements", "header['sites'][0][1] = [1 << 30, 1 << 30]"),
    ("a tensor of negative size", "header['sites'][0][1] = [-256, -2048]"),
    ("a buffer that does not exist", "header['sites'][0][3] = 'host'"),
    ("an operator that does not exist", f"{FIRST_FORM}[0] = '__import__'"),
    ("an engine of infinite speed", f"{FIRST_FORM}[1] = 'magic'"),
    ("the wrong shape of everything", "header['forms'] = {'a': [[[[[]]]]]}"),
    ("numbers where texts belong", f"{FIRST_FORM}[0] = 7"),
    (
        "nesting without end",
        "setattr(wire, 'json', type('Json', (), {'dumps': staticmethod(lambda *_, **__: '[' * 10**5)}))",
    ),
    ("no output", "header['outputs'] = []"),
    ("one output twice", "header['outputs'] = header['outputs'] * 2"),
    ("an input that is an output", "header['inputs'] = header['inputs'] + header['outputs']"),
    ("a loop that nothing ends", "columns['forms'] = columns['forms'][:-4] + b'\\x00\\x00\\x00\\x00'"),
    ("cores that are not there", "columns['cores'] = b'\\x07' * len(columns['cores'])"),
    ("lines from nowhere", "columns['lines'] = columns['lines'][:-4]"),
)

ATTACKS = (
    *REPLIES,
    *(
        Attack(f"hostile program: {what}", forge_reply(change), IMPORT, unruled=GARBLED)
        for what, change in HOSTILE
    ),
    Attack(
        "a program for another target",
        forge_reply("pass", "trn1"),
        IMPORT,
        unruled=broken("invalid_ir", "rules"),
    ),
    Attack(
        "a program whose output is its input",
        forge_reply("header['outputs'] = header['inputs']"),
        IMPORT,
        unruled=(Verdict.INCORRECT, "rules", "output_is_input"),
    ),
    Attack(
        "a forged error that claims a limit of the machine",
        body(
            "import os, sys",
            "from nki_sim import protocol",
            "from nki_sim.errors import LimitError",
            f"os.write({FD}, protocol.error_reply(LimitError('limit_x', 'x' * 10**6)))",
            "os._exit(0)",
        ),
        IMPORT,
        unruled=endless("limit_x"),
    ),
)
