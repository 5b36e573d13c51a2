"""What shells are told to complete, and what every verb's help has: examples that the command line takes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from agentctl.app import agentctl
from agentctl.completers import complete_runs
from agentctl.examples import EXAMPLES
from agentctl.verb_table import SECTIONS, VERBS
from agentctl.verbs.completion import INSTALL

PROGRAM = Path(sys.executable).with_name("agentctl")


@pytest.mark.parametrize("shell", INSTALL)
def test_each_shell_gets_its_script(ctl, shell):
    called = ctl("completion", shell)
    assert called.status == 0
    assert "_AGENTCTL_COMPLETE" in called.out
    assert ctl("completion", shell, "--json").json["script"].strip() == called.out.strip()


def test_bash_reads_the_script(ctl):
    script = ctl("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def completed(home: Path, *words: str) -> list[str]:
    """Ask as bash does, with the last of the words under the cursor."""
    env = {
        "COMP_WORDS": shlex.join(["agentctl", *words]), "COMP_CWORD": str(len(words)),
        "_AGENTCTL_COMPLETE": "bash_complete", "STATE_DIRECTORY": str(home), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    done = subprocess.run([PROGRAM], env=env, text=True, capture_output=True, check=False)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_verbs_options_and_runs_are_completed(home, finished):
    assert completed(home, "sta") == ["status", "stats"]
    assert "--grep" in completed(home, "tail", "--g")
    assert completed(home, "why", finished[:4]) == [finished]


def test_without_a_log_no_run_is_completed(home):
    context = click.Context(agentctl)
    from agentctl.app import Session

    context.obj = Session(home_option=home)
    assert complete_runs(context, click.Argument(["run"]), "") == []


def test_every_verb_that_a_first_user_meets_has_examples():
    assert set(EXAMPLES) <= set(VERBS)
    assert {"run", "status", "tail", "show", "why", "tree", "diff", "stats", "wait", "doctor"} <= set(
        EXAMPLES
    )


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_a_command_line(line):
    program, verb, *rest = shlex.split(line)
    assert program == "agentctl"
    context = click.Context(agentctl)
    command = agentctl.get_command(context, verb)
    assert command is not None
    assert line in command.get_help(click.Context(command, parent=context, info_name=verb))
    while rest and isinstance(command, click.Group) and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(verb, list(rest), parent=context):
        pass  # it parses: every option is there, and takes what it was given


def test_help_names_each_verb_once_and_imports_none(ctl):
    listed = [verb for verbs in SECTIONS.values() for verb in verbs]
    assert sorted(listed) == sorted(VERBS)
    text = ctl("--help").out
    assert [verb for verb in VERBS if f"\n  {verb} " not in text] == []
    script = "import sys; from agentctl.app import agentctl; agentctl(['--help'], standalone_mode=False)"
    loaded = "; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script + loaded], capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    assert {one for one in modules if one.startswith("state.")} == {"state.errors"}
    assert {one for one in modules if one.startswith("agentctl.verbs.")} == set()
    assert modules.isdisjoint({"numpy", "pydantic"})
