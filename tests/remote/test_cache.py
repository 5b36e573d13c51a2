"""What makes two kernels, and two evaluations, the same one."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from remote.cache import cache_key, code_digest, find_cached
from state.model import Evaluation, EvaluationRequest, Level, Verdict, digest_of
from targets.nki.judge.normalise import MAX_SOURCE_BYTES, parse_source
from tests.support.world import correct_evaluation

KERNELS = {name: seeds.load_problem(name).kernel for name in ("matmul", "rmsnorm_matmul", "silu")}
names = st.sampled_from(sorted(KERNELS))


def digest(source: str) -> str:
    return code_digest(source.encode(), "trn2")


def test_the_three_kernels_differ():
    assert len({digest(source) for source in KERNELS.values()}) == 3


@pytest.mark.parametrize("name", KERNELS)
def test_formatting_and_comments_do_not_count(name):
    source = KERNELS[name]
    rewritten = ast.unparse(ast.parse(source))
    assert rewritten != source
    assert digest(rewritten) == digest(source)
    assert digest(source.replace("\n", "\r\n")) == digest(source)
    assert digest(source.replace("    ", "\t")) == digest(source)


@given(names, st.integers(0, 200), st.text(st.characters(codec="ascii", exclude_characters="\r\n\0\f\v")))
def test_a_comment_anywhere_between_lines_does_not_count(name, at, text):
    lines = KERNELS[name].splitlines()
    at %= len(lines) + 1
    commented = "\n".join([*lines[:at], f"# {text}", "", *lines[at:]])
    assert digest(commented) == digest(KERNELS[name])


@pytest.mark.parametrize("name", KERNELS)
def test_docstrings_do_not_count_and_other_texts_do(name):
    source = KERNELS[name]
    body = source.partition('"""\n')[2]
    assert digest('"""Another text."""\n' + body) == digest(source)
    assert digest(body) == digest(source)
    inside = source.replace("):\n", '):\n    """Says more."""\n', 1)
    assert digest(inside) == digest(source)
    assert digest(source.replace("):\n", ':\n    x = "text"\n', 1)) != digest(source)


def mutations(source: str):
    """Every version of the source with one constant, name, operator or statement changed."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        before = dict(vars(node))
        match node:
            case ast.Constant(value=int() | float()):
                node.value += 1
            case ast.Name():
                node.id += "_"
            case ast.Attribute():
                node.attr += "_"
            case ast.keyword(arg=str()):
                node.arg += "_"
            case ast.BinOp():
                node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            case ast.FunctionDef() | ast.For():
                node.body = [*node.body, ast.Pass()]
            case _:
                continue
        yield type(node).__name__, ast.unparse(tree)
        vars(node).update(before)


@pytest.mark.parametrize("name", KERNELS)
def test_every_single_change_of_meaning_counts(name):
    digests = {digest(KERNELS[name])}
    kinds = set()
    for count, (kind, source) in enumerate(mutations(KERNELS[name]), start=1):
        digests.add(digest(source))
        assert len(digests) == count + 1, f"{kind} in\n{source}"
        kinds.add(kind)
    assert kinds >= {"Constant", "Name", "Attribute", "keyword", "BinOp", "FunctionDef", "For"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 0.0", "x = -0.0"),
        ("x = 'a'", "x = b'a'"),
        ("f(a, b)", "f(b, a)"),
        ("f(*a)", "f(a)"),
        ("f(a=b)", "f(**a)"),
        ("x[1:2]", "x[1:]"),
        ("x[1:]", "x[:1]"),
        ("def f(a, b=1): return a", "def f(a, *, b=1): return a"),
        ("if a:\n    b\nc", "if a:\n    b\n    c"),
        ("if a:\n    b\nelse:\n    c", "if a:\n    b\n    c"),
        ("global a", "nonlocal a"),
        ("import a", "import a as b"),
    ],
)
def test_near_misses_count(one, other):
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("x = 1_000", "x = 1000"), ("x = 'a'", 'x = "a"'), ("x = (1)", "x = 1"), ("x = 'a' 'b'", "x = 'ab'")],
)
def test_spellings_do_not_count(one, other):
    assert digest(one) == digest(other)


@pytest.mark.parametrize("data", [b"def (", b"\xff\xfe", b"x = \0", b"(" * 5000, b"-" * 100_000 + b"1"])
def test_what_is_not_python_is_known_by_its_bytes(data):
    assert code_digest(data, "trn2") == digest_of(data)
    with pytest.raises(SyntaxError):
        parse_source(data)


def test_a_source_beyond_all_measure_is_refused_unparsed():
    with pytest.raises(SyntaxError, match="at most"):
        parse_source(b"#" * (MAX_SOURCE_BYTES + 1))


def test_a_deep_tree_is_no_trouble():
    source = "x = " + " + ".join(["a"] * 500)
    assert digest(source) != digest(source + " + a")


@given(st.binary(max_size=300))
def test_any_bytes_have_a_digest(data):
    assert len(code_digest(data, "trn2")) == 64


def request(**changes) -> EvaluationRequest:
    fields = {
        "candidate": "r0.b0.p0.k0.f0",
        "author": "person",
        "source": digest_of(b"source"),
        "problem": seeds.load_problem("silu").make_ref(),
        "size": "full",
        "target": "trn2",
        "toolchain": "as of the request",
    }
    return EvaluationRequest(**{**fields, **changes})


def test_the_key_covers_what_an_answer_depends_on_and_nothing_else():
    base = {"code": "c" * 64, "evaluator": "sim", "toolchain": "1"}
    key = cache_key(request(), **base)
    same = [request(candidate="r1.b1.p1.k0.f0"), request(source=digest_of(b"x")), request(toolchain="other")]
    same += [request(base_ms=2.0)]
    same += [request(level="slices"), request(level="slices", base_ms=2.0), request(level="one_seed")]
    assert {cache_key(item, **base) for item in same} == {key}
    other = [
        request(size="reduced"),
        request(target="trn1"),
        request(problem=seeds.load_problem("matmul").make_ref()),
    ]
    keys = {cache_key(item, **base) for item in other}
    keys |= {cache_key(request(), **{**base, name: "d" * 64}) for name in base}
    assert len(keys | {key}) == 7


SLICES, ONE_SEED, WHOLE = Level


def verdict(level: Level, latency_ms: float | None = 1.0, *, correct: bool = True) -> Evaluation:
    found = correct_evaluation("kernel", latency_ms or 1.0, level=level)
    changes = {} if latency_ms else {"benchmark": None}
    return found.model_copy(update=changes if correct else {"verdict": Verdict.INCORRECT, "benchmark": None})


@pytest.mark.parametrize("asked", Level)
@pytest.mark.parametrize("known", Level)
def test_a_pass_serves_what_compares_as_much_or_less_and_a_rejection_all(known: Level, asked: Level):
    depths = list(Level)
    enough = depths.index(known) >= depths.index(asked)
    assert find_cached([verdict(known)], request(level=asked)) == ((0, verdict(asked)) if enough else None)
    refused = verdict(known, correct=False)
    assert find_cached([verdict(WHOLE), refused], request(level=asked)) == (1, refused)


def test_a_gain_too_good_is_served_by_a_verdict_on_everything_alone():
    asked = request(level=SLICES, base_ms=3.5)
    assert find_cached([verdict(SLICES), verdict(ONE_SEED)], asked) is None
    assert find_cached([verdict(SLICES), verdict(WHOLE)], asked) == (1, verdict(WHOLE))
    assert find_cached([verdict(SLICES, 1.2)], asked) == (0, verdict(SLICES, 1.2))


def test_without_a_latency_no_gain_is_too_good():
    assert find_cached([verdict(SLICES, None)], request(level=SLICES, base_ms=9.0)) == (
        0,
        verdict(SLICES, None),
    )


def test_of_nothing_nothing_is_served():
    assert find_cached([], request()) is None
