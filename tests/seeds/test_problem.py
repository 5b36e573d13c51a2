"""Loading problems: names, folders, bytes; and that a wrong one says everything that is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from seeds import SpecError, UnknownProblemError, UnknownSizeError
from seeds.problem_files import MAX_FILE_BYTES, MAX_FILES
from seeds.spec import parse_spec
from state.model import digest_of

GOOD = b"""
name = "twice"
formula = "out = 2 * x"
rel_l2 = 2e-5
seeds = [0, 1]
shape_generic = true
[sizes.full]
M = 256
N = 512
[sizes.reduced]
M = 128
N = 64
[[inputs]]
name = "x"
shape = ["M", "N"]
[[outputs]]
name = "out"
shape = ["M", "N"]
[work]
other_flops = "M * N"
"""
FILES = {
    "problem.toml": GOOD,
    "reference.py": b"def reference(x):\n    return 2 * x\n",
    "kernel.py": b"import nki\n",
}


def faults_of(toml: bytes) -> list[str]:
    with pytest.raises(SpecError) as caught:
        seeds.build_problem({**FILES, "problem.toml": toml})
    return list(caught.value.faults)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


PUBLISHED = {
    "adamw": {"M": 10944, "N": 2048},
    "add_rmsnorm_matmul": {"M": 4096, "N": 2048, "K": 1024},
    "bmm": {"B": 16, "M": 4096, "K": 64, "N": 4096},
    "bmm_softmax": {"B": 16, "M": 4096, "K": 64, "N": 4096},
    "gqa_full": {"B": 1, "N": 4096, "QH": 16, "KH": 8, "D": 128},
    "lora": {"M": 4096, "N": 12288, "K": 5120, "R": 128},
    "mamba": {"M": 7168, "C": 256, "S": 16},
    "matmul": {"M": 4096, "N": 12288, "K": 5120},
    "matmul_add_rmsnorm": {"M": 4096, "N": 2048, "K": 2048},
    "rmsnorm_matmul": {"M": 4096, "N": 2048, "K": 1024},
    "rope_single_freq_apply": {"B": 1, "H": 64, "N": 4096, "D": 128},
    "silu": {"M": 4096, "N": 7168},
    "swiglu": {"M": 4096, "N": 3072, "K": 1024},
    "transpose_matmul": {"M": 4096, "K": 2048, "N": 10944},
}
"""NKIBench's problems and their configurations."""


def test_all_problems_of_nkibench_are_built_in():
    assert set(PUBLISHED) <= set(seeds.builtin_problems())


@pytest.mark.parametrize(("name", "full"), PUBLISHED.items())
def test_built_in_problems_have_the_published_configuration(name, full):
    problem = seeds.load_problem(name)
    spec = problem.spec
    assert problem.name == spec.name == name
    assert spec.dims("full") == full
    assert spec.dims("reduced").keys() == full.keys()
    assert spec.rel_l2 == (3e-5 if name == "mamba" else 2e-5)
    assert spec.seeds == (0, 21, 42, 63, 84)
    assert all(item.dtype == "float32" for item in (*spec.inputs, *spec.outputs))
    drawn = {(item.distribution, item.scale) for item in spec.inputs}
    others = {"adamw": {("normal", 1.0), ("abs_normal", 1.0)}, "mamba": {("normal", 0.05)}}
    assert drawn == others.get(name, {("normal", 1.0)})
    assert [item.name for item in spec.inputs if item.distribution == "abs_normal"] == (
        ["v"] if name == "adamw" else []
    )


SHAPES = {
    "adamw": [(10944, 2048)] * 5,
    "add_rmsnorm_matmul": [(4096, 1024), (1024, 2048), (4096, 1024), (1024,), (4096, 2048)],
    "bmm": [(16, 4096, 64), (16, 64, 4096), (16, 4096, 4096)],
    "bmm_softmax": [(16, 4096, 64), (16, 64, 4096), (16, 4096, 4096)],
    "gqa_full": [(1, 4096, 16, 128), (1, 4096, 8, 128), (1, 4096, 8, 128), (1, 16, 4096, 128)],
    "lora": [(4096, 5120), (5120, 12288), (5120, 128), (128, 12288), (4096, 12288)],
    "mamba": [(256, 7168), (256, 7168), (256, 16), (16, 7168), (16, 7168), (256, 7168)],
    "matmul": [(4096, 5120), (5120, 12288), (4096, 12288)],
    "matmul_add_rmsnorm": [(4096, 2048), (2048, 2048), (4096, 2048), (2048,), (4096, 2048)],
    "rmsnorm_matmul": [(4096, 1024), (1024, 2048), (4096, 2048)],
    "rope_single_freq_apply": [(128, 262144), (64, 262144), (64, 262144), (128, 262144)],
    "silu": [(4096, 7168)] * 2,
    "swiglu": [(4096, 1024), (1024, 3072), (3072, 1024), (1024, 3072), (4096, 1024)],
    "transpose_matmul": [(2048, 4096), (2048, 10944), (4096, 10944)],
}
"""Of inputs and outputs, as the mathematics takes and gives them."""


@pytest.mark.parametrize(("name", "shapes"), SHAPES.items())
def test_built_in_problems_have_natural_shapes(name, shapes):
    spec = seeds.load_problem(name).spec
    assert [item.resolve_shape(spec.dims("full")) for item in (*spec.inputs, *spec.outputs)] == shapes


def test_work_counts_arrays_once_and_operations_by_expression():
    work = seeds.load_problem("rmsnorm_matmul").spec.minimal_work("full")
    assert work.read_bytes == 4 * (4096 * 1024 + 1024 * 2048)
    assert work.write_bytes == 4 * 4096 * 2048
    assert work.matmul_flops == 2 * 4096 * 2048 * 1024
    assert work.total_bytes == work.read_bytes + work.write_bytes


def test_a_folder_anywhere_is_a_problem(tmp_path):
    folder = write(tmp_path / "mine", {**FILES, "notes/why.md": b"because"})
    problem = seeds.load_problem(folder)
    assert problem.name == "twice"
    assert set(problem.files) == {*FILES, "notes/why.md"}
    assert problem.kernel == "import nki\n"
    assert seeds.load_problem(str(folder)) == problem


def test_files_and_folder_give_the_same_digest_and_any_byte_changes_it(tmp_path):
    problem = seeds.load_problem(write(tmp_path / "mine", FILES))
    assert problem.digest == seeds.build_problem(dict(reversed(FILES.items()))).digest
    for name, data in FILES.items():
        changed = seeds.build_problem({**FILES, name: data + b"\n"})
        assert changed.digest != problem.digest
    assert seeds.build_problem({**FILES, "more.py": b""}).digest != problem.digest


def test_reference_by_blobs_names_every_file():
    problem = seeds.build_problem(FILES)
    ref = problem.make_ref()
    assert ref.name == "twice"
    assert ref.digest == problem.digest
    assert ref.files == {name: digest_of(data) for name, data in FILES.items()}


def test_hidden_files_byte_code_and_links_are_not_part_of_a_problem(tmp_path):
    folder = write(tmp_path / "mine", {**FILES, ".git/config": b"x", "__pycache__/a.pyc": b"x"})
    (folder / "link.py").symlink_to("/etc/hostname")
    assert set(seeds.load_problem(folder).files) == set(FILES)


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        ({f"f{i}.txt": b"" for i in range(MAX_FILES)}, f"more than {MAX_FILES} files"),
        ({"big.bin": b"\0" * (MAX_FILE_BYTES + 1)}, "larger than"),
    ],
)
def test_a_folder_that_is_no_problem_folder_is_refused_early(tmp_path, extra, part):
    with pytest.raises(SpecError) as caught:
        seeds.load_problem(write(tmp_path / "mine", {**FILES, **extra}))
    assert part in str(caught.value)


def test_unknown_problem_names_it_those_known_and_the_nearest():
    with pytest.raises(UnknownProblemError) as caught:
        seeds.load_problem("rmsnorm-matmul")
    text = str(caught.value)
    assert "\n" not in text
    assert "unknown problem 'rmsnorm-matmul'" in text
    assert "did you mean 'rmsnorm_matmul'?" in text
    assert all(name in text for name in seeds.builtin_problems())
    assert caught.value.code == "unknown_problem"


def test_unknown_size():
    with pytest.raises(UnknownSizeError, match=r"unknown size 'ful' - did you mean 'full'\?"):
        seeds.load_problem("silu").spec.minimal_work("ful")


def test_all_faults_come_in_one_error():
    toml = b"""
name = "not a name"
formula = "out = 2 * x"
rel_l2 = 3
shape_generic = true
colour = "red"
[sizes.full]
M = 0
[[inputs]]
name = "x"
shape = ["M", "Q"]
dtype = "float99"
[[inputs]]
name = "x"
shape = ["M // 0"]
[[outputs]]
name = "x"
shape = []
[work]
matmul_flops = "2 ** M"
"""
    with pytest.raises(SpecError) as caught:
        seeds.build_problem({"problem.toml": toml, "reference.py": b"def wrong(x): pass", "extra.py": b""})
    error = caught.value
    text = str(error)
    expected = [
        "problem.toml: name:",
        "problem.toml: rel_l2: ",
        "problem.toml: seeds: required",
        "problem.toml: colour: unknown key",
        "problem.toml: sizes.full.M: input should be greater than or equal to 1 (found 0)",
        "problem.toml: inputs.0.dtype: ",
        "problem.toml: outputs.0.shape: ",
        "problem.toml: sizes.reduced: there must be a size of this name",
        "problem.toml: inputs.1.name: 'x' names two arguments",
        "problem.toml: outputs.0.name: 'x' names two arguments",
        "problem.toml: inputs.0.shape.1: unknown dimension 'Q'",
        "problem.toml: inputs.1.shape.0: 'M // 0' divides by zero",
        "problem.toml: work.matmul_flops: '2 ** M': only names",
        "reference.py: defines no function 'reference'",
    ]
    for start in expected:
        assert any(fault.startswith(start) for fault in error.faults), start
    assert len(error.faults) == len(expected)
    assert text.startswith("problem '?' has 14 faults:")
    assert text.count("\n  - ") == 14
    assert error.code == "invalid_problem"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"N = 64\n", b"", "sizes.reduced: has no N, which another size has"),
        (b"N = 64\n", b"N = 64\nP = 3\n", "sizes.full: has no P, which another size has"),
        (
            b'shape = ["M", "N"]',
            b'shape = ["M", "N - 64"]',
            "inputs.0.shape.1: 'N - 64' is 0 at size reduced",
        ),
        (b'"M * N"', b'"M - N"', "work.other_flops: 'M - N' is -256 at size full"),
        (
            b"seeds = [0, 1]",
            b"seeds = [-1]",
            "seeds.0: input should be greater than or equal to 0 (found -1)",
        ),
        (b'name = "twice"', b"name = ", "not TOML"),
        (b'name = "x"', b'name = "x"\nscale = -1.0', "inputs.0.scale: "),
        (b"M = 256", b'M = "256"', "sizes.full.M: input should be a valid integer (found '256')"),
        (b"shape_generic = true", b'shape_generic = "yes"', "shape_generic: input should be a valid boolean"),
        (b'other_flops = "M * N"', b"other_flops = true", "work.other_flops"),
        (b"seeds = [0, 1]", b"seeds = [0, 1.0]", "seeds.1: input should be a valid integer"),
    ],
)
def test_single_faults(old, new, fault):
    found = faults_of(GOOD.replace(old, new, 1))
    assert any(fault in text for text in found)


def test_wrong_types_everywhere_are_one_message():
    wrong = {
        b'name = "twice"': b"name = 3",
        b"rel_l2 = 2e-5": b'rel_l2 = "small"',
        b"seeds = [0, 1]": b'seeds = ["0"]',
        b"M = 256": b'M = "256"',
        b'shape = ["M", "N"]': b'shape = "M N"',
        b'other_flops = "M * N"': b"other_flops = true",
    }
    text = GOOD
    for old, new in wrong.items():
        text = text.replace(old, new, 1)
    found = faults_of(text)
    for place in ("name", "rel_l2", "seeds.0", "sizes.full.M", "inputs.0.shape", "work.other_flops"):
        assert any(fault.startswith(f"problem.toml: {place}") for fault in found), place


EXTENDED = GOOD.replace(
    b"[work]",
    b"""[[scalars]]
name = "alpha"
value = 0.5
position = 0
[[relations]]
name = "rows"
inputs = { x = "permute 0" }
outputs = { out = "permute 0" }
[work]""",
)
FILES_EXTENDED = {**FILES, "reference.py": b"def reference(alpha, x):\n    return alpha * x\n"}


def test_scalars_stand_where_their_positions_say():
    spec = seeds.build_problem({**FILES_EXTENDED, "problem.toml": EXTENDED}).spec
    assert spec.call_arguments(["x"], lambda value: value) == [0.5, "x"]
    toml = EXTENDED.replace(b"position = 0", b'[[scalars]]\nname = "n"\nvalue = 3\nposition = 1')
    files = {**FILES_EXTENDED, "reference.py": b"def reference(x, n, alpha): pass"}
    found = seeds.build_problem({**files, "problem.toml": toml}).spec.call_arguments(
        ["x"], lambda value: value
    )
    assert found == ["x", 3, 0.5]
    assert type(found[1]) is int


def test_a_problem_that_is_not_generic_needs_no_reduced_size():
    start, end = GOOD.index(b"[sizes.reduced]"), GOOD.index(b"[[inputs]]")
    toml = GOOD[:start] + GOOD[end:]
    assert faults_of(toml) == [
        "problem.toml: sizes.reduced: there must be a size of this name, unless shape_generic = false"
    ]
    spec, faults = parse_spec(toml.replace(b"shape_generic = true", b"shape_generic = false"))
    assert faults == []
    assert set(spec.sizes) == {"full"}
    alone, faults = parse_spec(
        toml.replace(b"shape_generic = true", b"shape_generic = false").replace(
            b"[sizes.full]", b"[sizes.reduced]"
        )
    )
    assert faults == []
    assert set(alone.sizes) == {"reduced"}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"rel_l2 = ", b"rel_12 = 1\nrel_l2 = ", "rel_12: unknown key - did you mean 'rel_l2'?"),
        (b'name = "x"', b'name = "x"\nscal = 2.0', "inputs.0.scal: unknown key - did you mean 'scale'?"),
        (b"other_flops", b"other_flop", "work.other_flop: unknown key - did you mean 'other_flops'?"),
        (
            b"value = 0.5",
            b'value = "half"',
            "scalars.0.value: input should be true or false or an integer or a number (found 'half')",
        ),
        (b"value = 0.5", b"value = inf", "scalars.0.value: input should be a finite number (found inf)"),
        (b'name = "alpha"', b'name = "x"', "scalars.0.name: 'x' names two arguments"),
        (b"position = 0", b"position = 5", "scalars.0.position: 5, there are 1 before it"),
        (
            b'name = "x"',
            b'name = "x"\nkernel_shape = ["N", "N"]',
            "inputs.0.kernel_shape: [512, 512] has not the 131072 elements of shape [256, 512] at size full",
        ),
        (
            b'name = "x"',
            b'name = "x"\nkernel_shape = ["Q"]',
            "inputs.0.kernel_shape.0: unknown dimension 'Q'",
        ),
        (b'name = "out"', b'name = "out"\nkernel_shape = "all"', "outputs.0.kernel_shape"),
        (b'x = "permute 0"', b'y = "permute 0"', "relations.0.inputs: unknown input 'y' (known: x)"),
        (b'{ out = "permute 0" }', b'{ ou = "permute 0" }', "unknown output 'ou' - did you mean 'out'?"),
        (b'x = "permute 0"', b'x = "reverse 0"', "'reverse 0' is not a change (known: permute AXIS"),
        (b'x = "permute 0"', b'x = "permute 2"', "the array has 2 axes, counted from 0"),
        (b'x = "permute 0"', b'x = "permute"', "'permute' is not a change"),
        (b'x = "permute 0"', b'x = "permute -1"', "an axis is a number from 0"),
        (b'x = "permute 0"', b'x = "scale 3"', "a factor is a power of two"),
        (b'x = "permute 0"', b'x = "scale nan"', "a factor is a power of two"),
        (b'x = "permute 0"', b'x = "permute 1"', "axes of different lengths at size full: x 512, out 256"),
        (b'out = "permute 0"', b'out = "shift 0"', "outputs are changed by negate, permute, scale only"),
        (b'inputs = { x = "permute 0" }', b'linear = ["x"]', "`linear` is about all outputs as they are"),
        (b'inputs = { x = "permute 0" }', b"", "either `inputs` with what changes, or `linear`"),
        (b'inputs = { x = "permute 0" }', b"inputs = { x = 3 }", "relations.0.inputs.x"),
    ],
)
def test_faults_of_what_is_optional(old, new, fault):
    with pytest.raises(SpecError) as caught:
        seeds.build_problem({**FILES_EXTENDED, "problem.toml": EXTENDED.replace(old, new, 1)})
    assert any(fault in text for text in caught.value.faults), caught.value.faults


def test_only_floats_are_scaled_or_added():
    toml = EXTENDED.replace(b'name = "x"', b'name = "x"\ndtype = "int32"').replace(
        b'x = "permute 0"', b'x = "negate"'
    )
    with pytest.raises(SpecError, match="only floats are scaled, shifted or added"):
        seeds.build_problem({**FILES_EXTENDED, "problem.toml": toml})


@pytest.mark.parametrize(
    ("signature", "fault"),
    [
        ("x", "takes 1 arguments, the problem has 2 inputs and scalars"),
        ("a, b, c", "takes 3 arguments, the problem has 2"),
        ("a, b, *, c", "needs 'c' by name"),
        ("a, b", None), ("*all", None), ("a, b=1, c=2", None), ("a, /, b", None), ("a, b, *, c=1, **d", None),
    ],
)  # fmt: skip
def test_references_take_what_the_problem_has(signature, fault):
    files = {
        **FILES_EXTENDED,
        "problem.toml": EXTENDED,
        "reference.py": f"def reference({signature}): 0".encode(),
    }
    if fault is None:
        assert seeds.build_problem(files).name == "twice"
        return
    with pytest.raises(SpecError) as caught:
        seeds.build_problem(files)
    assert fault in caught.value.faults[0]


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("reference.py", b"def reference(:", "reference.py: not Python"),
        ("kernel.py", b"\xff\xfe", "kernel.py: not Python"),
        ("kernel.py", b"(" * 10_000, "kernel.py: not Python"),
    ],
)
def test_sources_that_are_not_python(name, data, fault):
    with pytest.raises(SpecError) as caught:
        seeds.build_problem({**FILES, name: data})
    assert [text for text in caught.value.faults if text.startswith(fault)]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"{", "workload.json: not JSON: "),
        (b"\xff", "workload.json: not JSON: "),
        (b"[" * 100_000, "workload.json: not JSON: "),
        (b"[]", "workload.json: has no table 'graphs'"),
        (b'{"graphs": {"full": {}, "ful": {}}}', "workload.json: has a graph for 'ful', which is no size"),
    ],
)
def test_graphs_that_are_not_of_the_problem(data, fault):
    with pytest.raises(SpecError) as caught:
        seeds.build_problem({**FILES, "workload.json": data})
    assert [text for text in caught.value.faults if text.startswith(fault)]


def test_graphs_are_part_of_the_digest_and_optional():
    plain = seeds.build_problem(FILES)
    carrying = seeds.build_problem({**FILES, "workload.json": b'{"graphs": {"full": {}}}'})
    assert carrying.digest != plain.digest
    assert carrying.spec == plain.spec


def test_missing_spec_is_a_fault_among_others():
    with pytest.raises(SpecError) as caught:
        seeds.build_problem({})
    assert caught.value.faults == (
        "problem.toml: missing",
        "reference.py: missing",
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_spec_or_faults(data):
    spec, faults = parse_spec(data)
    assert (spec is None) == bool(faults)


@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=6))
def test_a_damaged_spec_never_raises(start, end, patch):
    spec, faults = parse_spec(GOOD[:start] + patch + GOOD[end:])
    assert (spec is None) == bool(faults)
    assert all(fault.startswith("problem.toml: ") for fault in faults)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.py", "a/../../b.py", "./x.py", "a//b.py", "", "nul\0.py", "kernel.py/x"]
)
def test_a_submitted_file_stays_inside_the_problem(name: str) -> None:
    with pytest.raises(SpecError):
        seeds.build_problem({**FILES, name: b""})
    assert seeds.build_problem({**FILES, "data/table.txt": b""}).spec.name == "twice"


def test_submitted_files_have_limits_too() -> None:
    many = {f"f{number}": b"" for number in range(MAX_FILES)}
    large = {"large": bytes(MAX_FILE_BYTES + 1)}
    for files, what in ((many, "more than"), (large, "larger than")):
        with pytest.raises(SpecError, match=what):
            seeds.build_problem({**FILES, **files})


def test_a_deeply_nested_spec_is_a_fault_not_a_crash() -> None:
    assert any("not TOML" in fault for fault in faults_of(b"x = " + b"[" * 100_000))
