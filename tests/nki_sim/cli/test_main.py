"""What every verb shares: exit statuses, one envelope, where errors go, signals."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from nki_sim import cli as command_line
from nki_sim.cli import lists, verb, verb_table
from nki_sim.cli.verb import Verb
from nki_sim.errors import ScheduleError


def test_a_broken_rule_is_reported_as_incorrect(kernel_file: Path, cli: Any) -> None:
    status, out, _ = cli("run", kernel_file, "--arg", "128x600", "--json")
    report = json.loads(out)
    assert (status, report["correct"]) == (1, False)
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert cli("trace", kernel_file, "--arg", "128x600")[0] == 1


def test_kernel_errors_have_their_own_status(tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import nki\n\n\n@nki.jit\ndef kernel(x):\n    return 1 / 0\n")
    status, out, _ = cli("run", path, "--arg", "4x4", "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]["line"]) == (3, False, 6)
    status, _, err = cli("run", path, "--arg", "4x4")
    assert status == 3
    assert "line 6: kernel_exception: ZeroDivisionError" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("trace", "missing.py"),
        ("trace", "KERNEL", "--arg", "4xfour"),
        ("trace", "KERNEL", "--arg", "4x4:float99"),
        ("trace", "KERNEL", "--arg", "128x512", "--target", "trn9"),
        ("run", "KERNEL", "--arg", "128x512", "--reference", "KERNEL"),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", "a,b"),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", ""),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", "0,-1"),
    ],
)
def test_usage_errors_are_one_line(argv: tuple[str, ...], kernel_file: Path, cli: Any) -> None:
    if argv[-1] == "KERNEL":
        kernel_file.with_name("empty.py").write_text("x = 1\n")
        argv = (*argv[:-1], str(kernel_file.with_name("empty.py")))
    status, _, err = cli(*[str(kernel_file) if item == "KERNEL" else item for item in argv])
    assert status == 2
    assert err.startswith("nki-sim: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def forward(x): return x[:5]", "arrays of [(5, 512)], the kernel of [(128, 512)]"),
        ("def forward(x): return 1.0", "arrays of [()], the kernel of [(128, 512)]"),
        ("def forward(x): return x, x", "the kernel of [(128, 512)]"),
        ("def forward(): return 0", "the reference raised TypeError"),
        ("def forward(x): return x + y", "the reference raised NameError"),
        ("1 / 0", "the reference raised ZeroDivisionError"),
        ("def forward(x:", "the reference raised SyntaxError"),
    ],
)
def test_a_reference_at_fault_is_usage(
    text: str, message: str, kernel_file: Path, tmp_path: Path, cli: Any
) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text(text + "\n")
    status, out, err = cli("run", kernel_file, "--arg", "128x512", "--reference", reference)
    assert (status, out) == (2, "")
    assert message in err


def test_a_kernel_file_that_is_no_text_is_usage(tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "binary.py"
    path.write_bytes(b"\xff\xfe\x00")
    status, _, err = cli("trace", path)
    assert status == 2
    assert err.startswith("nki-sim: ")


def test_every_outcome_of_run_has_the_same_keys(pair: Any, tmp_path: Path, cli: Any) -> None:
    good = cli(*pair())[1]
    broken = tmp_path / "broken.py"
    broken.write_text("import nki\n\n@nki.jit\ndef kernel(x):\n    return x.nothing\n")
    usage = cli("run", broken, "--json", "--arg", "1x")[1]
    fault = cli("run", broken, "--json", "--arg", "4x4")[1]
    reports = [json.loads(text) for text in (good, usage, fault)]
    assert len({tuple(report) for report in reports}) == 1
    assert reports[1]["error"]["code"] == "invalid_input"
    assert reports[2]["error"]["line"] == 5


def test_errors_show_the_line_they_are_about(tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import nki\n\n\n@nki.jit\ndef kernel(x):\n    return 1 / 0  # here\n")
    _, _, err = cli("run", path, "--arg", "4x4")
    assert err.splitlines()[0].startswith(f"{path}: line 6: kernel_exception: ZeroDivisionError")
    assert err.splitlines()[1] == "    6 | return 1 / 0  # here"


def test_findings_show_the_line_they_are_about(kernel_file: Path, cli: Any) -> None:
    _, out, _ = cli("run", kernel_file, "--arg", "128x600")
    lines = out.splitlines()
    place = next(index for index, text in enumerate(lines) if "tensor_output_not_written_to" in text)
    assert lines[place + 1].strip().partition(" | ")[2] in kernel_file.read_text()
    assert lines[place + 2].strip() == "hint: cover every element of the output, also the tails"


def test_every_command_on_the_page_parses() -> None:
    page = (Path(command_line.__file__).parents[2] / "docs/nki-sim.md").read_text(encoding="utf-8")
    commands = [line.split("#")[0] for line in page.splitlines() if line.startswith("    nki-sim ")]
    assert len(commands) >= 8
    for line in commands:
        argv = shlex.split(line.replace("...", "--arg 1"))[1:]
        assert command_line.build_parser().parse_args(argv).verb == argv[0]


def test_the_modules_that_the_page_names_exist() -> None:
    package = Path(command_line.__file__).parents[1]
    page = (package.parent / "docs/nki-sim.md").read_text(encoding="utf-8")
    table = page.split("## The modules")[1].split("\n\n")[1]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(names) > 20
    patterns = [name if name.endswith("/") else f"{name}.py" for name in names]
    assert [pattern for pattern in patterns if not list(package.glob(pattern))] == []


# -- one envelope ---------------------------------------------------------------------------------

VERBS = ("trace", "run", "profile")


@pytest.mark.parametrize("verb", VERBS)
def test_every_outcome_of_a_verb_has_the_same_keys(verb: str, kernel_file: Path, cli: Any) -> None:
    tails = [
        ("--arg", "128x512"),
        ("--arg", "128x600"),
        ("--arg", "128xfive"),
        ("--arg", "128x512", "--target", "trn9"),
        ("--arg", "128x512", "--entry", "other"),
        ("--arg", "128x512", "--reference", "nowhere.py"),
        ("--arg", "128x512", "--no-such-option"),
        (),
    ]
    found = [cli(verb, kernel_file, *tail, "--json") for tail in tails]
    reports = [json.loads(out) for _, out, _ in found]
    assert [status for status, _, _ in found] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert len({tuple(report) for report in reports}) == 1
    assert {report["verb"] for report in reports} == {verb}
    assert [report["error"] is None for report in reports] == [True, True] + [False] * 6
    assert [report["correct"] for report in reports] == [None, False] + [None] * 6


@pytest.mark.parametrize(
    "argv", [("run",), ("run", "k.py", "--tolerance", "x"), ("path", "more"), ("ops", "-x")]
)
def test_a_command_that_does_not_parse_is_an_object_too(argv: tuple[str, ...], cli: Any) -> None:
    status, out, err = cli(*argv, "--json")
    report = json.loads(out)
    assert (status, report["verb"], report["error"]["code"]) == (2, argv[0], "usage")
    assert tuple(report) == tuple(verb_table.VERBS[argv[0]].blank_report())
    assert err.startswith("usage: nki-sim")
    assert err.splitlines()[-1] == report["error"]["message"]
    assert cli(*argv)[:2] == (2, "")


@pytest.mark.parametrize("argv", [(), ("fly",)])
def test_without_a_verb_there_is_an_object_with_the_error(argv: tuple[str, ...], cli: Any) -> None:
    status, out, _ = cli(*argv, "--json")
    assert (status, json.loads(out)["verb"], json.loads(out)["error"]["code"]) == (2, None, "usage")


@pytest.mark.parametrize("verb", ["ops", "rules", "path"])
def test_lists_have_the_envelope_of_what_has_no_kernel(verb: str, cli: Any) -> None:
    report = json.loads(cli(verb, "--json")[1])
    assert (report["verb"], report["error"]) == (verb, None)
    assert tuple(report) == tuple(verb_table.VERBS[verb].blank_report())


# -- statuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("--deadline", "-1"), ("--deadline", "nan"), ("--tolerance", "-1e-9"), ("--tolerance", "inf")],
)
def test_a_number_below_zero_is_usage(option: str, value: str, kernel_file: Path, cli: Any) -> None:
    status, _, err = cli("run", kernel_file, "--arg", "128x512", f"{option}={value}")
    assert status == 2
    assert err.endswith(f"argument {option}: '{value}' is not a number from 0\n")


@pytest.mark.parametrize(
    ("extra", "message", "hint"),
    [
        (("--entry", "other"), "no @nki.jit function other; found: kernel", "--entry NAME"),
        (("--arg", "2"), "kernel takes 1 arguments, 2 given", "its parameters are x (one --arg for each"),
    ],
)
@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_a_launch_that_does_not_fit_the_kernel_is_usage(
    extra: Any, message: str, hint: str, eager: Any, *, kernel_file: Path, cli: Any
) -> None:
    argv = ("run", kernel_file, "--arg", "128x512", *extra, *eager)
    status, out, err = cli(*argv)
    assert (status, out) == (2, "")
    assert err.startswith(f"nki-sim: {kernel_file}: {message}")
    assert hint in err.splitlines()[1]
    report = json.loads(cli(*argv, "--json")[1])
    assert report["correct"] is None


@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_a_broken_rule_has_one_status_and_place(eager: Any, kernel_file: Path, cli: Any) -> None:
    status, out, _ = cli("run", kernel_file, "--arg", "128x600", *eager, "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]) == (1, False, None)
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert report["checks"][0]["tensor"] == "out"
    text = cli("run", kernel_file, "--arg", "128x600", *eager)[1]
    assert "tensor_output_not_written_to: " in text


INDEXED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, at):
    out = nl.ndarray((1, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((1, 32), dtype=x.dtype, buffer=nl.sbuf)
    place = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=place, src=at)
    register = nisa.register_alloc()
    nisa.register_load(register, place)
    nisa.dma_copy(dst=row, src=x[nl.ds(register, 1), 0:32])
    nisa.dma_copy(dst=out, src=row)
    return out
"""


@pytest.mark.parametrize("eager", [(), ("--eager",)])
@pytest.mark.parametrize(("rows", "status", "codes"), [(8, 0, []), (1, 1, ["tensor_access_out_of_bound"])])
def test_a_rule_broken_on_data_is_a_broken_rule(
    rows: int, status: int, codes: list[str], eager: Any, *, tmp_path: Path, cli: Any
) -> None:
    kernel = tmp_path / "indexed.py"
    kernel.write_text(INDEXED)
    argv = ("run", kernel, "--arg", f"{rows}x32", "--arg", "1x1:int32", "--seeds", "0,1,2", *eager, "--json")
    found, out, _ = cli(*argv)
    report = json.loads(out)
    assert (found, [item["code"] for item in report["checks"]], report["error"]) == (status, codes, None)
    assert [item["line"] for item in report["checks"]] == [15] * status


def test_too_much_is_no_verdict(monkeypatch: Any, kernel_file: Path, cli: Any) -> None:
    monkeypatch.setattr("nki_sim.running.numerics.run", raising(MemoryError()))
    status, out, _ = cli("run", kernel_file, "--arg", "128x512", "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]["code"]) == (3, None, "limit_memory")


def test_a_fault_of_the_simulator_says_that_it_is_one(monkeypatch: Any, kernel_file: Path, cli: Any) -> None:
    monkeypatch.setattr("nki_sim.running.numerics.run", raising(AssertionError("never")))
    status, out, err = cli("run", kernel_file, "--arg", "128x512", "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]["code"]) == (70, None, "internal_error")
    assert "Traceback" in err
    assert "this is a fault of the simulator" in err


def raising(error: Exception) -> Any:
    def raises(*_: Any, **__: Any) -> None:
        raise error

    return raises


@pytest.mark.parametrize("name", ["nl.dynamic_range", "nki.baremetal"])
def test_what_the_simulator_lacks_is_no_verdict(name: str, tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "newer.py"
    path.write_text(f"import nki\nimport nki.language as nl\n\n@nki.jit\ndef kernel(x):\n    {name}(x)\n")
    status, out, _ = cli("run", path, "--arg", "4x4", "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]["code"]) == (3, None, "unsupported")


@pytest.mark.parametrize(("verb", "status"), [("run", 0), ("profile", 3)])
def test_what_cannot_be_scheduled_has_no_counters(
    verb: str, status: int, monkeypatch: Any, kernel_file: Path, cli: Any
) -> None:
    for module in ("run", "profile"):
        monkeypatch.setattr(f"nki_sim.cli.{module}.forecast_program", raising(ScheduleError("it never fits")))
    found, out, err = cli(verb, kernel_file, "--arg", "128x512", "--json")
    report = json.loads(out)
    assert (found, report["correct"], report["counters"], report["checks"]) == (status, None, {}, [])
    assert "it never fits" in (err if verb == "run" else report["error"]["message"])


# -- what the page says ---------------------------------------------------------------------------


def test_the_page_has_every_status_and_key() -> None:
    page = (Path(command_line.__file__).parents[2] / "docs/nki-sim.md").read_text(encoding="utf-8")
    statuses = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    named = {value for name, value in vars(verb).items() if name.startswith("EXIT_")}
    assert statuses == {0, *named, 128 + signal.SIGPIPE}
    table_of_keys = page.split("| key | holds |")[1].split("\n\n")[0]
    keys = {
        key for row in table_of_keys.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert keys == {key for entry in verb_table.VERBS.values() for key in entry.blank_report()}


# -- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "option", "target"),
    [
        (None, None, "trn2"),
        ("trn1", None, "trn1"),
        ("gen2", None, "trn1"),
        ("GEN3", None, "trn2"),
        ("trn2", "trn1", "trn1"),
        ("trn3", "gen3", "trn2"),
        ("gen4", None, "trn3"),
        (None, "Trn3", "trn3"),
    ],
)
def test_the_target_is_that_of_the_option_else_of_the_environment(
    environment: str | None, option: str | None, target: str, *, monkeypatch: Any, kernel_file: Path, cli: Any
) -> None:
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    if environment:
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", environment)
    given = ("--target", option) if option else ()
    status, out, _ = cli("trace", kernel_file, "--arg", "128x512", *given, "--json")
    assert (status, json.loads(out)["target"]) == (0, target)


@pytest.mark.parametrize("verb", VERBS)
def test_a_target_that_is_not_there_is_refused_by_name(
    verb: str, monkeypatch: Any, kernel_file: Path, cli: Any
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    status, _, err = cli(verb, kernel_file, "--arg", "128x512")
    assert status == 2
    assert err.startswith("nki-sim: NEURON_PLATFORM_TARGET_OVERRIDE=trn9: ")
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    assert cli(verb, kernel_file, "--arg", "128x512", "--target", "trn9")[2].startswith(
        "nki-sim: --target trn9: "
    )


# -- the table of verbs ---------------------------------------------------------------------------


def test_a_verb_is_an_entry_of_the_table(monkeypatch: Any, cli: Any) -> None:
    """What a module adds: a name, options, keys, lines."""

    def action(options: Any, report: Any) -> int:
        report["both"] = [options.one, options.other]
        return 1

    def options(sub: Any) -> None:
        sub.add_argument("one")
        sub.add_argument("other")

    verb = Verb(
        name="pair", text="two things", action=action, options=options, keys={"both": None}, on_kernel=False,
        lines=lambda report, _: report["both"],
    )  # fmt: skip
    monkeypatch.setitem(verb_table.VERBS, "pair", verb)
    assert cli("pair", "a", "b") == (1, "a\nb\n", "")
    assert json.loads(cli("pair", "a", "b", "--json")[1]) == {
        "verb": "pair",
        "both": ["a", "b"],
        "error": None,
    }
    assert lists.PATH.name in verb_table.VERBS
