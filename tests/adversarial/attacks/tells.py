"""Kernels that look for a sign of the simulator, so that they can be other kernels on a device.

Each computes what it should here. Where the static rules let it look, the tracer notes what it asked for, and
the judge refuses it even if it caught the error.
"""

from __future__ import annotations

from tests.adversarial.attacks.walls import CORRECT, NAME, PRIVATE, UNKNOWN, beside
from tests.adversarial.model import Attack, Judged, broken

UNDEFINED = broken("undefined_text")
SWALLOW = """class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return True


@nki.jit"""


PAPER = """class Paper:
    def __init__(self, held=None):
        self.held = held

    def write(self, text):
        self.text = text

    def __str__(self):
        self.text = str(self.held)
        return self.text


@nki.jit"""


def attempt_lines(look: str) -> tuple[str, ...]:
    """Lines that look at something, whether that is there or not."""
    return "try:", f"    found = {look}", "except Exception:", "    found = None"


def attempt(look: str) -> str:
    """Return a correct kernel that looks at something, whether that is there or not."""
    return beside(*attempt_lines(look))


LOADING = beside("pass").replace(
    "@nki.jit",
    """def look(function):
    try:
        function.found = nl.context
    except Exception:
        pass
    return function


@nki.jit
@look""",
)


LOOKS: tuple[tuple[str, str, Judged, Judged | None], ...] = (
    ("a tensor asked for what only a simulated one has", attempt("x.storage"), UNKNOWN, None),
    ("a tensor asked for what it had before", attempt("x.numpy()"), UNKNOWN, None),
    ("a module asked for its imports", attempt("nl.context"), UNKNOWN, None),
    ("a module asked for what other releases have", attempt("nki.benchmark"), broken("unsupported"), None),
    ("an instruction that only a device has", attempt("nisa.all_engines"), UNKNOWN, None),
    (
        "a pattern that matches simulated tensors",
        beside("match x:", "    case nl.NkiTensor(dims=found):", "        pass"),
        UNKNOWN,
        None,
    ),
    (
        "an error's text",
        beside("try:", "    x[0 : 10**6]", "except Exception as error:", "    found = str(error)"),
        broken("tensor_access_out_of_bound"),
        None,
    ),
    (
        "an error that a context swallows",
        beside("with Swallow():", "    x.storage").replace("@nki.jit", SWALLOW),
        UNKNOWN,
        None,
    ),
    ("a data type asked for what NumPy's has", attempt("x.dtype.char"), UNKNOWN, None),
    ("a function asked for what a device's has", attempt("nisa.memset.cost"), UNKNOWN, None),
    (
        "a private name of a tensor's, by a function whose argument is called self",
        beside("def look(self):", "    return self._storage", *attempt_lines("look(x)")),
        UNKNOWN,
        None,
    ),
    (
        "an error that the end of a block drops",
        beside("for _ in range(1):", "    try:", "        nl.sbuf.device", "    finally:", "        break"),
        UNKNOWN,
        None,
    ),
    ("a module asked while the file is loaded", LOADING, UNKNOWN, None),
    (
        "a tensor's text, printed to the kernel itself",
        beside("print(x, file=Paper())").replace("@nki.jit", PAPER),
        UNDEFINED,
        None,
    ),
    (
        "a tensor's text, by an object that is printed",
        beside("print(Paper(x))").replace("@nki.jit", PAPER),
        UNDEFINED,
        None,
    ),
    ("a tensor's text, by a print of its own", beside("print = str", "found = print(x)"), UNDEFINED, None),
    ("a tensor's text", beside("found = repr(x).startswith('<')"), UNDEFINED, None),
    ("a tensor's text in an f-string", beside("found = f'{x}'"), UNDEFINED, None),
    ("a tensor's text in a format string", beside("found = '{}'.format(x)"), UNDEFINED, None),
    ("a tensor's text by %", beside("found = '%s' % (x,)"), UNDEFINED, None),
    ("a register's text", beside("found = str(nisa.register_alloc(0))"), UNDEFINED, None),
    ("hasattr", beside("found = hasattr(x, 'storage')"), NAME, UNKNOWN),
    ("dir", beside("found = dir(x)"), NAME, CORRECT),
    ("a type's bases", beside("found = type(x).__mro__"), PRIVATE, CORRECT),
    ("a class by its dunder name", beside("found = x.__class__.__module__"), PRIVATE, CORRECT),
    ("a class in a format string", beside("found = '{0.__class__}'.format(x)"), PRIVATE, CORRECT),
)

ATTACKS = tuple(
    Attack(technique, kernel, judged, unruled=unruled) for technique, kernel, judged, unruled in LOOKS
)
