"""Kernels that use Python's own machinery against the rules, the recorder, or the time tracing may take."""

from __future__ import annotations

from tests.adversarial.attacks.walls import IMPORT, NAME, PRIVATE, RAISED
from tests.adversarial.model import Attack, body, broken, edit, endless, expect_refusal

LOAD = "nisa.dma_copy(dst=t, src=x[0:128, 0:2048])"
T = "t = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.sbuf)"


def before(text: str, *lines: str) -> str:
    """Return a kernel of these lines, with definitions in front of it."""
    return body(*lines).replace("@nki.jit", f"{text}\n\n\n@nki.jit")


LIAR = """class Liar(int):
    def __lt__(self, other):
        return True

    def __le__(self, other):
        return True

    def __gt__(self, other):
        return False

    def __ge__(self, other):
        return True

    def __sub__(self, other):
        return 128

    def __rsub__(self, other):
        return 128"""
FICKLE = """class Fickle:
    def __init__(self, *values):
        self.values = list(values)

    def __index__(self):
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]"""
ENDLESS = """class Endless:
    def __getitem__(self, at):
        return 1

    def __len__(self):
        return 2"""
EQUAL = """class Equal(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7"""

ATTACKS = (
    Attack(
        "a class asked for items",
        before("class A:\n    def __class_getitem__(cls, item):\n        return item", "A[0]"),
        NAME,
        unruled=broken("tensor_output_not_written_to", "rules"),
    ),
    Attack(
        "code when a class is derived",
        before(
            "class A:\n    def __init_subclass__(cls):\n        while True: pass",
            "class B(A): pass",
        ),
        NAME,
        unruled=endless("cpu_limit"),
    ),
    Attack(
        "a class of classes",
        before(
            "class M(type):\n    def __call__(cls):\n        while True: pass",
            "class B(metaclass=M): pass",
            "B()",
        ),
        NAME,
        unruled=endless("cpu_limit"),
    ),
    Attack(
        "all classes, by a type's ancestors",
        body("raise ValueError([c for c in type(x).__mro__[-1].__subclasses__()])"),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "attributes read by a format",
        body("raise ValueError('{0.__class__.__init__.__globals__}'.format(x))"),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "attributes read by a format put together",
        body("raise ValueError(('{0.__cla' + 'ss__.__init__.__globals__}').format(x))"),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "attributes read by a format of a mapping",
        body("raise ValueError('{x.__class__}'.format_map({'x': x}))"),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "a frame matched by a pattern",
        body(
            "def walk():",
            "    yield 1",
            "match walk():",
            "    case object(gi_frame=frame):",
            "        raise ValueError(frame.f_back)",
        ),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "a frame matched by a pattern of a class of its own",
        before(
            "class Any:\n    pass",
            "def walk():",
            "    yield 1",
            "match walk():",
            "    case Any(gi_frame=frame):",
            "        raise ValueError(frame.f_back)",
            "raise ValueError('no match')",
        ),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "a frame of a coroutine",
        body(
            "async def walk(): pass",
            "walker = walk()",
            "frame = walker.cr_frame",
            "walker.close()",
            "raise ValueError(frame)",
        ),
        expect_refusal("forbidden_statement"),
        unruled=RAISED,
    ),
    Attack(
        "frames of an error's trace",
        body(
            "try:",
            "    1 / 0",
            "except ZeroDivisionError as error:",
            "    raise ValueError(error.__traceback__.tb_frame.f_back.f_locals)",
        ),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "names in letters of full width",
        body("raise ValueError(x.__\uff43lass__)"),
        PRIVATE,
        unruled=RAISED,
    ),
    Attack(
        "a module in letters of full width",
        body("import \uff4f\uff53", "raise ValueError(dict(os.environ))"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "built-in functions by their module",
        body("import builtins", "builtins.open('/etc/passwd')"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "an attribute getter made by a module",
        body("import operator", "raise ValueError(operator.attrgetter('__class__')(x))"),
        IMPORT,
        unruled=RAISED,
    ),
    Attack(
        "a name that is deleted to reach another",
        body("open = 1", "def f():", "    return open", "raise ValueError(f())").replace(
            "    open = 1\n", "    global open\n    open = 1\n    del open\n"
        ),
        NAME,
        unruled=RAISED,
    ),
    Attack(
        "work in the body of a class",
        before("class A:\n    held = max(i for i in range(10**12))"),
        endless("cpu_limit"),
    ),
    Attack(
        "work in a default",
        before("def f(a=max(i for i in range(10**12))):\n    return a"),
        endless("cpu_limit"),
    ),
    Attack("a text a billion wide", body("raise ValueError(f'{1:>{10**10}}')"), RAISED),
    Attack("a list without room", body("held = [0] * 10**12"), RAISED),
    Attack("numbers that grow without end", body("n = 3", "while True: n = n * n"), endless("cpu_limit")),
    Attack(
        "keys that all collide",
        before(
            "class K:\n    def __hash__(self):\n        return 1\n\n"
            "    def __eq__(self, other):\n        return False",
            "held = {K(): i for i in range(10**9)}",
        ),
        endless("cpu_limit"),
    ),
    Attack(
        "numbers that lie about their size",
        before(
            LIAR,
            T,
            "nisa.dma_copy(dst=t, src=x[Liar(512) : Liar(640), 0:2048])",
            "nisa.dma_copy(dst=out[0:128, 0:2048], src=t)",
        ),
        broken("tensor_access_out_of_bound"),
    ),
    Attack(
        "a size that changes when it is asked for",
        before(FICKLE, "t = nl.ndarray((128, Fickle(2048, 8)), dtype=x.dtype, buffer=nl.sbuf)", LOAD),
        broken("shape"),
    ),
    Attack(
        "a shape without end",
        before(ENDLESS, "t = nl.ndarray(tuple(Endless()), dtype=x.dtype, buffer=nl.sbuf)"),
        endless("cpu_limit"),
    ),
    Attack(
        "a text that equals every other",
        before(EQUAL, "t = nl.ndarray((128, 2048), dtype=Equal('float8'), buffer=nl.sbuf)", LOAD),
        broken("dtype"),
    ),
    Attack(
        "a tile of no columns",
        body("t = nl.ndarray((128, 0), dtype=x.dtype, buffer=nl.sbuf)"),
        broken("shape"),
    ),
    Attack(
        "an output of no rows",
        body("out = nl.ndarray((0, 2048), dtype=x.dtype, buffer=nl.shared_hbm)"),
        broken("shape"),
    ),
    Attack(
        "a copy of nothing",
        edit("silu", ("dst=out[i_m * TILE_M : (i_m + 1) * TILE_M", "dst=out[i_m * TILE_M : i_m * TILE_M")),
        broken("tensor_access_out_of_bound"),
    ),
    Attack("its argument for its result", body("return x"), broken("output_buffer")),
    Attack("its result twice", edit("silu", ("return out", "return out, out")), broken("output_twice")),
    Attack("part of its result", edit("silu", ("return out", "return out[0:128]")), broken("output_buffer")),
    Attack("nothing for its result", edit("silu", ("return out", "return None")), broken("output_type")),
    Attack(
        "its result from chip",
        body(T, LOAD, "return t"),
        broken("output_buffer"),
    ),
    Attack(
        "two kernels of one name",
        edit("silu") + "\n\n@nki.jit\ndef kernel(x):\n    return x\n",
        broken("output_buffer"),
    ),
)
