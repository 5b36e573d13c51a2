"""C sources: settings, digests, what is refused, and the header that comes before them."""

from __future__ import annotations

import pytest

from seeds import build_problem
from targets.base import SourceError
from targets.c.header import render_header
from targets.c.language import C, read_settings
from tests.targets.c.kernels import PLAIN, PROBLEM


@pytest.mark.parametrize(
    ("comment", "code"),
    [
        ("// language: rust", "unknown_standard"),
        ("// flags: -fplugin=x.so", "unknown_flag"),
        ("// flags: -O2 -include secret.h", "unknown_flag"),
        ("// flags: -o out", "unknown_flag"),
        ("// flags: @file", "unknown_flag"),
        ("// flags: -Wl,-z,execstack", "unknown_flag"),
        ("// threads: many", "bad_threads"),
        ("// threads: 0", "bad_threads"),
        ("// threads: 2\n// threads: 3", "repeated_setting"),
    ],
)
def test_settings_that_are_not_allowed_are_refused_by_name(comment: str, code: str) -> None:
    error = C.lint(f"{comment}\n{PLAIN}".encode())
    assert error is not None
    assert error.code == code


def test_settings_decide_how_a_kernel_is_compiled() -> None:
    settings = read_settings("// language: c++17\n// flags: -O2 -mavx2 -ffast-math\n// threads: 4\n" + PLAIN)
    assert (settings.standard, settings.flags, settings.threads) == (
        "c++17",
        ("-O2", "-mavx2", "-ffast-math"),
        4,
    )
    assert settings.is_cpp
    assert read_settings(PLAIN).flags == ("-O3", "-march=native")


def test_layout_and_comments_are_no_other_kernel_but_settings_are() -> None:
    plain = C.code_digest(PLAIN.encode())
    bare = "\n".join(line for line in PLAIN.split("\n") if not line.startswith("//"))
    spread = bare.replace(" ", "\n  ").replace("{", "{ /* a comment */ // another\n")
    assert C.code_digest(spread.encode()) == plain
    assert C.code_digest(f"// flags: -O2\n{PLAIN}".encode()) != plain
    assert C.code_digest(PLAIN.replace("+ 1", "+ 2").encode()) != plain
    defined, apart = "#define A 1\nA B\n", "#define A 1 A B\n"
    assert C.code_digest((defined + PLAIN).encode()) != C.code_digest((apart + PLAIN).encode())


def test_a_kernel_s_operators_are_its_intrinsics_and_pragmas() -> None:
    assert C.operators(PLAIN) == frozenset({"loops"})
    source = PLAIN.replace("    for", "#pragma omp  simd\n    for").replace("2 * x[i]", "_mm256_add_ps(a, b)")
    assert C.operators(source) == frozenset({"omp simd", "_mm256_add_ps"})
    assert C.operators("no kernel") == frozenset()


def test_a_kernel_in_a_comment_is_none() -> None:
    with pytest.raises(SourceError, match="no definition"):
        C.kernel_names("/* void kernel(float *x) { } */\nint main(void) { return 0; }")


def test_the_header_has_dimensions_as_constants_and_the_prototype() -> None:
    files = dict(PROBLEM)
    files["problem.toml"] += (
        b'[[scalars]]\nname = "eps"\nvalue = 0.5\nposition = 0\n[[scalars]]\nname = "n"\nvalue = 3\n'
    )
    files["reference.py"] = b"def reference(eps, x, n):\n    return x\n"
    header = render_header(build_problem(files).spec, "reduced")
    assert "enum { M = 64, N = 256 };" in header
    assert "void kernel(double eps, const float *restrict x, int n, float *restrict out);" in header
