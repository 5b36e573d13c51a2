"""Kernels that build another program the next time: what is judged is not what runs later."""

from __future__ import annotations

import subprocess
import sys

from tests.adversarial.model import Attack, broken, edit

TILES = "        for i_n in nl.affine_range(n // TILE_N):"
SHORTCUT = """
            if i_n and not first:
                place = (slice(i_m * TILE_M, (i_m + 1) * TILE_M), slice(i_n * TILE_N, (i_n + 1) * TILE_N))
                nisa.dma_copy(dst=out[place], src=x[place])
                continue"""


def only_once(state: str, is_first: str) -> str:
    """Return `silu` that leaves out its second half of columns except where `is_first`."""
    return edit(
        "silu",
        ("@nki.jit", f"{state}\n\n\n@nki.jit"),
        ("    out = nl", f"    first = {is_first}\n    out = nl"),
        (TILES, TILES + SHORTCUT),
    )


IN_A_CLASS = """class Calls:
    count = 0

    @classmethod
    def add(cls):
        cls.count += 1
        return cls.count"""
IN_A_DEFAULT = """def add(calls=[]):
    calls.append(1)
    return len(calls)"""
IN_A_GENERATOR = """def count():
    n = 0
    while True:
        n += 1
        yield n


def take(made=[]):
    if not made:
        made.append(count())
    return next(made[0])"""

IN_A_COUNTER = """from itertools import count

NUMBERS = count()"""
IN_A_CACHE = """from functools import lru_cache


@lru_cache
def remember(n):
    return [n]


def calls():
    made = remember(1)
    made.append(1)
    return len(made) - 1"""
IN_A_CLOSURE = """def counter():
    count = 0

    def add():
        nonlocal count
        count += 1
        return count

    return add


CALLS = []


def calls():
    if not CALLS:
        CALLS.append(counter())
    return CALLS[0]()"""

IN_A_SET = '''def order():
    """The order of a set of strings, which is another in each process but those of the jail."""
    return "".join({"a", "b", "c", "d", "e", "f", "g", "h"})


ORDERS = ("KNOWN",)'''

IN_A_CYCLE = """from itertools import cycle

TURNS = cycle((True, True, True, False))"""
IN_A_CHAIN = """from itertools import chain, repeat

TURNS = chain((True, True, True), repeat(False))"""
IN_PAIRS = """PAIRS = []


def count():
    if not PAIRS:
        PAIRS.append(zip(range(99), range(99)))
    return next(PAIRS[0])[0]"""
IN_AN_ERROR = """ERRORS = []


def count():
    if not ERRORS:
        ERRORS.append(ValueError(0))
    ERRORS[0].args = (ERRORS[0].args[0] + 1,)
    return ERRORS[0].args[0]"""
IN_A_PARTIAL = """from functools import partial

HELD = partial(min, 1)


def count():
    try:
        HELD.calls += 1
    except Exception:
        HELD.calls = 1
    return HELD.calls"""
IN_THE_KERNEL = """def count():
    try:
        silu.calls += 1
    except Exception:
        silu.calls = 1
    return silu.calls"""
IN_THE_LANGUAGE = """HELD = nl.ndarray
HELD.calls = 0


def count():
    HELD.calls += 1
    return HELD.calls"""
IN_A_CONTEXT = """from contextlib import contextmanager


@contextmanager
def step(n=[0]):
    yield n


HELD = []


def count():
    if not HELD:
        HELD.append(step())
    try:
        HELD[0].calls += 1
    except Exception:
        HELD[0].calls = 1
    return HELD[0].calls"""


def _find_order(hash_seed: int) -> str:
    """Return the order in which a process with this seed walks through that set; the jail's first has 0."""
    code = "print(''.join({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))"
    environment = {"PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


RIGHT_IN_ONE_PROCESS = only_once(IN_A_SET.replace("KNOWN", _find_order(0)), "order() in ORDERS")
"""Right with the hashes that every jail's first process has, and with no others."""

ATTACKS = (
    Attack(
        "right in the judge's first process only: the order of a set of strings",
        RIGHT_IN_ONE_PROCESS,
        broken("trace_differs"),
    ),
    Attack(
        "right in processes with hash seeds that it knows",
        only_once(
            IN_A_SET.replace('("KNOWN",)', repr(tuple(map(_find_order, range(4))))), "order() in ORDERS"
        ),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a list of the module",
        only_once("CALLS = []", "len(CALLS) < 2\n    CALLS.append(1)"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a class that counts",
        only_once(IN_A_CLASS, "Calls.add() <= 3"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a default argument",
        only_once(IN_A_DEFAULT, "add() <= 4"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a suspended generator",
        only_once(IN_A_GENERATOR, "take() <= 8"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a counter of itertools",
        only_once(IN_A_COUNTER, "next(NUMBERS) < 12"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a closure",
        only_once(IN_A_CLOSURE, "calls() <= 5"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a list in a cache",
        only_once(IN_A_CACHE, "calls() <= 5"),
        broken("trace_differs"),
    ),
    Attack(
        "right at its first call only: a list of the module",
        only_once("CALLS = []", "not CALLS\n    CALLS.append(1)"),
        broken("trace_differs"),
    ),
    Attack(
        "right at its first call only: a class that counts",
        only_once(IN_A_CLASS, "Calls.add() == 1"),
        broken("trace_differs"),
    ),
    Attack(
        "right at its first call only: a default argument",
        only_once(IN_A_DEFAULT, "add() == 1"),
        broken("trace_differs"),
    ),
    Attack(
        "right at its first call only: a generator that goes on",
        only_once(IN_A_GENERATOR, "take() == 1"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: turns that go round",
        only_once(IN_A_CYCLE, "next(TURNS)"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: a chain of turns",
        only_once(IN_A_CHAIN, "next(TURNS)"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: pairs of numbers",
        only_once(IN_PAIRS, "count() < 3"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: an error's arguments",
        only_once(IN_AN_ERROR, "count() <= 3"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: an attribute of a partial call",
        only_once(IN_A_PARTIAL, "count() <= 3"),
        broken("trace_differs"),
    ),
    Attack(
        "right for as many calls as a judge makes: an attribute of the kernel",
        only_once(IN_THE_KERNEL, "count() <= 3"),
        broken("unknown_name"),  # on its first call it asks for an attribute that is not there yet
    ),
    Attack(
        "right for as many calls as a judge makes: an attribute of the language",
        only_once(IN_THE_LANGUAGE, "count() <= 2"),
        broken("forbidden_statement"),  # nothing looks there for a count
    ),
    Attack(
        "right for as many calls as a judge makes: an attribute of a context",
        only_once(IN_A_CONTEXT, "count() <= 3"),
        broken("trace_differs"),
    ),
)
