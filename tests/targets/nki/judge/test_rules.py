"""The static rules: what kernels need is allowed, what attacks need is not, and the line is named."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from targets.nki.judge import rules
from targets.nki.judge.normalise import parse_source


def offences(source: str) -> list[rules.RuleOffence]:
    return rules.check_source(ast.parse(source), source)


HONEST = [
    "import nki\nimport nki.isa as nisa\nimport nki.language as nl\nfrom nki.language import affine_range",
    "from nki import isa as nisa, language as nl",
    "import math\nTILE = 128\nA, B = 1, 2\nEPS: float = 1e-6",
    "TILE = 128\nNAMES = ('a', 'b')\nLIMIT = min(4, 512 // TILE)",
    "import numpy as np\ndef f(nl):\n    return nl.shared_constant(np.identity(128, dtype=np.float32))",
    "import neuronxcc.nki as nki, neuronxcc.nki.isa as nisa, neuronxcc.nki.typing as nt",
    "from neuronxcc.nki import language as nl\nfrom neuronxcc.nki.language import par_dim",
    "from functools import partial, reduce\nfrom itertools import product\nfrom typing import Optional",
    "import functools\ndef f(x):\n    return functools.partial(max, x)",
    "from __future__ import annotations",
    "import math\nX = [math.sqrt(2)]",
    "import numpy as np\nLOWEST = np.float32(-1)\nEPS = np.finfo(np.float32).eps",
    "from functools import partial\nfrom operator import mul\ndouble = partial(mul, 2)",
    "from collections import namedtuple\nTile = namedtuple('Tile', 'rows columns')\nTILE = Tile(128, 512)",
    "from dataclasses import dataclass\n\n@dataclass\nclass Shape:\n    m: int\n\n\nSHAPE = Shape(128)",
    "class Pair:\n    def __add__(self, other):\n        return 1\n    def __len__(self):\n        return 1",
    "def f(x):\n    x.rows = 1\n    return x.rows",
    "def f(cfg):\n    return cfg.dims, cfg.kept, cfg.lookup, cfg.patterns, cfg.numpy, cfg.data, cfg.storage",
    "class Config:\n    dims = (1, 2)\n    storage: int = 3\n    def context(self):\n        return 1",
    "def f(cfg):\n    match cfg:\n        case object(dims=dims, fresh=True):\n            return dims",
    "from dataclasses import dataclass\n\n@dataclass\nclass Shape:\n    m: int",
    "class Tiles:\n    def __init__(self, n):\n        self._n = n\n    def m(self):\n        return self._n",
    "def f(input, type, open):\n    return input + type + open",
    "def f(x):\n    for i in range(len(x.shape)):\n        assert x.shape[i] % 128 == 0, f'{i}'",
    "def f(x):\n    try:\n        return x[0]\n    except IndexError as e:\n        raise e",
    "def f(n):\n    return [i for i in range(n) if isinstance(i, int)]",
    "def f(n):\n    while n > 0:\n        n -= 1\n        yield n",
    '"""A docstring."""\n\n\ndef f():\n    """Another."""\n    return (lambda a: a)(1)',
    "def f(x):\n    match x:\n        case [a, b]:\n            return a\n    print(x)",
    "def f(x):\n    return '{0:>{width}d} of {x.shape[0]}'.format(1, width=3, x=x)",
    "class A:\n    pass\nclass B(A):\n    def __init__(self):\n        super().__init__()",
    (
        "from collections import deque, namedtuple\nfrom collections.abc import Sequence\nimport operator\n"
        "def f(a):\n    return operator.mul(a, a)"
    ),
    "def f():\n    return __name__\nif __name__ == '__main__':\n    print(f())",
    "from functools import wraps\ndef d(g):\n    @wraps(g)\n    def h(a):\n        return g(a)\n    return h",
    "import functools\ndef d(g):\n    @d\n    @functools.wraps(g)\n    def h(a):\n        return g(a)",
    "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass A(Generic[T]):\n    pass",
    "import typing\nT = typing.TypeVar('T', bound=int)",
    "from collections import ChainMap\nfrom enum import Flag, unique\nfrom operator import truediv",
    "import numpy as np\ndef f(a: np.ndarray | None) -> np.ndarray:\n    return np.cumsum([np.log2(8)])",
    "from enum import IntEnum\nfrom contextlib import contextmanager\nclass E(IntEnum):\n    A = 1",
    "import functools\nfrom dataclasses import dataclass as d\n@functools.total_ordering\n@d\nclass A: pass",
    "import dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int = dataclasses.field(default=1)",
]

ATTACKS = [
    ("def f(x):\n    return '{0.__class__}'.format(x)", "forbidden_attribute", 2),
    ("def f(x):\n    return '{0:{1._a}}'.format(1, x)", "forbidden_attribute", 2),
    ("def f(x):\n    return '{0.gi_frame}'.format(x)", "forbidden_attribute", 2),
    ("def f(x, y):\n    return x.format(y)", "forbidden_attribute", 2),
    ("def f(x):\n    return str.format('{0}', x)", "forbidden_attribute", 2),
    ("def f(x):\n    return x.format_map({})", "forbidden_attribute", 2),
    (
        "def f(x):\n    match x:\n        case object(gi_frame=a):\n            return a",
        "forbidden_attribute",
        3,
    ),
    ("def f():\n    return super().__getattribute__", "forbidden_attribute", 2),
    ("def f():\n    return super(int, 1).__init__", "forbidden_attribute", 2),
    ("from operator import attrgetter", "forbidden_import", 1),
    ("import contextlib\ndef f():\n    return contextlib.sys", "forbidden_import", 3),
    ("import os", "forbidden_import", 1),
    ("x = 1\nimport nki, sys", "forbidden_import", 2),
    ("import os.path as p", "forbidden_import", 1),
    ("from subprocess import run", "forbidden_import", 1),
    ("from . import nki", "forbidden_import", 1),
    ("from nki import *", "forbidden_import", 1),
    ("from nki.isa import _private", "forbidden_import", 1),
    ("from functools import singledispatch", "forbidden_import", 1),
    ("from functools import wraps\ndef f(g, h):\n    wraps(g)(h)", "forbidden_name", 3),
    ("import functools as t\ndef f(g, h):\n    t.wraps(g, assigned=('x',))(h)", "forbidden_name", 3),
    (
        "from functools import wraps as w\ndef f(g):\n    @w(g, updated=('x',))\n    def h(): pass",
        "forbidden_name",
        3,
    ),
    ("from functools import wraps\ndef f(g):\n    @wraps(g)\n    @g\n    def h(): pass", "forbidden_name", 3),
    (
        "import nki.language as nl\nfrom dataclasses import dataclass as d\ndef f():\n    d(nl.NkiTensor)",
        "forbidden_name",
        4,
    ),
    ("from dataclasses import dataclass\ndef f(c):\n    g = dataclass\n    g(c)", "forbidden_name", 3),
    ("import dataclasses as d\ndef f(c):\n    d.dataclass(order=True)(c)", "forbidden_name", 3),
    ("from dataclasses import dataclass\n@dataclass\n@f\nclass A: pass", "forbidden_name", 2),
    ("from dataclasses import dataclass\n@dataclass(A)\nclass A: pass", "forbidden_name", 2),
    ("from functools import total_ordering\ndef f(c):\n    return total_ordering(c)", "forbidden_name", 3),
    (
        "from dataclasses import dataclass\n@dataclass\nclass A(metaclass=lambda *_: B):\n    pass",
        "forbidden_name",
        2,
    ),
    ("import numpy as np\ndef f():\n    return np.ndarray((9,))", "forbidden_import", 3),
    ("import numpy as np\ndef f(a: [np.ndarray]):\n    pass", "forbidden_import", 2),
    ("from numpy import ndarray", "forbidden_import", 1),
    ("import numpy as np\ndef f():\n    return np.empty(9)", "forbidden_import", 3),
    ("def f(x):\n    return hash(x)", "forbidden_name", 2),
    ("def f(x):\n    return type(x)", "forbidden_name", 2),
    ("def f(x):\n    return id(x)", "forbidden_name", 2),
    ("__name__ = '__main__'", "forbidden_name", 1),
    ("def f():\n    global __name__\n    import math as __name__", "forbidden_name", 1),
    ("if __name__ != '__main__':\n    pass", "import_side_effect", 1),
    ("if __name__ == '__main__':\n    pass\nelse:\n    print(1)", "import_side_effect", 1),
    ("if __name__ == '__main__':\n    import os", "forbidden_import", 2),
    ("import dataclasses\ndef f():\n    return dataclasses.sys.modules", "forbidden_import", 3),
    ("import typing as t\ndef f():\n    t.sys.exit(0)", "forbidden_import", 3),
    ("import numpy as np\ndef f():\n    return np.load('x')", "forbidden_import", 3),
    ("from numpy import fromfile", "forbidden_import", 1),
    ("def f():\n    import numpy as np\n    np.ctypeslib", "forbidden_import", 3),
    ("import numpy.ctypeslib", "forbidden_import", 1),
    ("import neuronxcc.nki.compiler.backend", "forbidden_import", 1),
    ("import nki\nimport nki.isa as nisa\nimport neuronxcc.nki.language as nl", "mixed_namespaces", 3),
    ("from neuronxcc.nki import isa\nfrom nki.language import add", "mixed_namespaces", 2),
    ("import nki_sim", "forbidden_import", 1),
    ("def f():\n    import socket", "forbidden_import", 2),
    ("def f():\n    return eval('1')", "forbidden_name", 2),
    ("def f():\n    open('/etc/passwd')", "forbidden_name", 2),
    ("def f(x):\n    return getattr(x, 'sto' + 'rage')", "forbidden_name", 2),
    ("def f(x):\n    setattr(x, 'a', 1)", "forbidden_name", 2),
    ("def f():\n    return globals()", "forbidden_name", 2),
    ("def f():\n    __import__('os')", "forbidden_name", 2),
    ("def f():\n    return __builtins__", "forbidden_name", 2),
    ("def f():\n    return [exec(x) for x in 'a']", "forbidden_name", 2),
    ("def f():\n    breakpoint()", "forbidden_name", 2),
    ("def f():\n    type('X', (), {})", "forbidden_name", 2),
    (
        "def f():\n    def open():\n        pass\n    def g():\n        return eval\n    return g",
        "forbidden_name",
        5,
    ),
    ("def f():\n    global eval\n    eval = 1", "forbidden_name", 3),
    ("if False:\n    open = 1\ndef f():\n    return open", "forbidden_name", 2),
    ("class A:\n    x = open", "forbidden_name", 2),
    ("class A:\n    if 0:\n        eval = 1\n    y = eval", "forbidden_name", 3),
    ("def g(open):\n    pass\ndef f():\n    open('/x')", "forbidden_name", 2 + 2),
    ("def f(x):\n    return x.__class__", "forbidden_attribute", 2),
    ("def f(x):\n    return x._recorder", "forbidden_attribute", 2),
    ("def f(self):\n    return self.__dict__", "forbidden_attribute", 2),
    (
        "def f(x):\n    match x:\n        case object(__class__=c):\n            return c",
        "forbidden_attribute",
        3,
    ),
    ("def f(x):\n    x.__class__ = int", "forbidden_attribute", 2),
    ("def f(g):\n    return g.gi_frame", "forbidden_attribute", 2),
    ("def f(g):\n    return g.f_back.f_globals", "forbidden_attribute", 2),
    ("def f(a):\n    a.tofile('x')", "forbidden_attribute", 2),
    ("def f(a):\n    return a.ctypes", "forbidden_attribute", 2),
    ("import numpy as np\ndef f():\n    m = np\n    return m.load", "forbidden_name", 3),
    ("class A:\n    import numpy", "forbidden_import", 2),
    ("class A:\n    def __reduce__(self):\n        return 1", "forbidden_name", 2),
    ("class A:\n    def __array_interface__(self):\n        return {}", "forbidden_name", 2),
    ("import nki.language as nl\ndef f():\n    nl.exp = nl.tanh", "forbidden_statement", 3),
    ("import nki\ndef f():\n    nki.Kernel.grid = 1", "forbidden_statement", 3),
    ("import math\ndef f():\n    del math.sqrt", "forbidden_statement", 3),
    ("print('hello')", "import_side_effect", 1),
    ("for i in (1, 2):\n    pass", "import_side_effect", 1),
    ("while True:\n    pass", "import_side_effect", 1),
    ("def f():\n    pass\nX = f()", "import_side_effect", 3),
    ("import nki.language as nl\nX = nl.ndarray((1, 1), nl.float32)", "import_side_effect", 2),
    ("import math\nX = (lambda: math.pi)()", "import_side_effect", 2),
    ("import numpy as np\ndef f(a):\n    a.resize(4, refcheck=False)", "forbidden_attribute", 3),
    ("X = (y := 1)", "import_side_effect", 1),
    ("if True:\n    X = 1", "import_side_effect", 1),
    ("assert 0", "import_side_effect", 1),
    ("async def f():\n    pass", "forbidden_statement", 1),
    ("async def f():\n    await g", "forbidden_statement", 1),
]


@pytest.mark.parametrize("source", HONEST)
def test_honest_kernels_pass(source):
    assert offences(source) == []


@pytest.mark.parametrize("name", ["matmul", "rmsnorm_matmul", "silu"])
def test_initial_kernels_pass(name):
    assert offences(seeds.load_problem(name).kernel) == []


@pytest.mark.parametrize(("source", "code", "line"), ATTACKS)
def test_attacks_are_named_with_their_line(source, code, line):
    found = offences(source)
    assert any((offence.code, offence.line) == (code, line) for offence in found), found
    assert all(offence.message and offence.hint for offence in found)


def test_offences_come_in_the_order_of_lines():
    found = offences("import os\ndef f():\n    eval('1')\n    x.__class__\n    import sys\n")
    assert [offence.line for offence in found] == [1, 3, 4, 5]


@given(st.sampled_from([source for source, _, _ in ATTACKS]), st.sampled_from(HONEST))
def test_honest_code_around_an_attack_does_not_hide_it(attack, honest):
    if "__future__" not in honest:
        assert offences(f"{honest}\n{attack}\n")
    if "__future__" not in attack:
        assert offences(f"{attack}\n{honest.replace('from __future__ import annotations', '')}\n")


FORBIDDEN = sorted(rules._ALL_BUILTINS - rules.BUILTINS - {"__name__"})


@given(st.sampled_from(FORBIDDEN))
def test_no_forbidden_built_in_is_reachable_by_name(name):
    for template in ("def f():\n    return {}", "def f():\n    return lambda: {}", "class A:\n    x = {}"):
        source = template.format(name)
        assert offences(source), source


@pytest.mark.parametrize("source", ["def f():\n    nonlocal a", "x = " + "-" * 3000 + "1"])
def test_what_python_would_not_compile_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        rules.check_source(parse_source(source.encode()), source)


FIELDS = "{a}" * 6000


@pytest.mark.parametrize(
    "text",
    [
        f'x = f"{FIELDS}"',
        f"x = Rf'''\n\n{FIELDS}'''",
        f"y = \"'\"; x = f'it\\'s {FIELDS}'",
        f'# it\'s\rx = F"{FIELDS}"',
        'x = f"' + "{a:{a}}" * 4000 + '"',
        'x = (f"{a}' + f'" f"{FIELDS}" "{{")',
    ],
)
def test_an_f_string_that_takes_seconds_to_parse_is_refused_unparsed(monkeypatch, text):
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(ast, "parse", never)
    found = rules.find_first_offence(f"import nki\n{text}\n".encode())
    assert found is not None
    assert (found.code, found.line) == ("syntax_error", 2)
    assert "too many fields" in found.message


@pytest.mark.parametrize(
    "text",
    [
        f'x = "{FIELDS}"',
        f"# it's f\"{FIELDS}",
        "x = [" + 'f"{a}", ' * 6000 + "]",
        f'x = "f{FIELDS}" f"{{a}}"',
        "x = [" + "{}, " * 9000 + "]",
    ],
)
def test_many_braces_that_take_no_time_to_parse_pass(text):
    assert rules.find_first_offence(f"a = 1\n{text}\n".encode()) is None


@pytest.mark.parametrize(("failures", "read"), [(1, True), (4, True), (5, False)])
def test_a_text_is_parsed_again_if_another_thread_disturbed_it(monkeypatch, failures, read):
    left = failures

    def disturbed(*args: object, whole=ast.parse, **kwargs: object) -> ast.AST:
        nonlocal left
        left -= 1
        if left >= 0:
            raise SystemError("AST constructor recursion depth mismatch")
        return whole(*args, **kwargs)

    monkeypatch.setattr(ast, "parse", disturbed)
    if read:
        assert isinstance(parse_source(b"x = 1"), ast.Module)
    else:
        with pytest.raises(SystemError):
            parse_source(b"x = 1")
