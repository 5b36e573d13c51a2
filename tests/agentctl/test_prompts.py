"""`agentctl prompts` and `config check`: what LLM roles are told, what is replaced, what is wrong with it."""

from __future__ import annotations

import asyncio

from agent_core.prompting import builtin_prompts
from agentctl.filled_prompts import load_run_prompts
from daemon import exits
from daemon.commands import CommandHandler
from daemon.config import Config
from daemon.config_watcher import ConfigWatcher
from state.log import EventLog
from state.reader import LogReader
from tests.daemon.calls import fake_models
from tests.support import constants_model, fakes

ASK = builtin_prompts().files["planner/ask.md"] + "Prefer what is simple.\n"


def replace(home, path: str, text: str) -> None:
    file = home / "prompts" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def take_edits(home) -> None:
    with EventLog.open(home) as log:
        commands = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
        asyncio.run(ConfigWatcher(log, turn=commands.turn, apply=lambda _: None, env={}).poll())


def test_the_set_is_listed_role_by_role_in_the_order_it_is_told(ctl):
    called = ctl("prompts")
    assert called.out.startswith(
        f"prompts {builtin_prompts().version[:12]}: the program's own\nplanner, in this order:\n"
    )
    found = ctl("prompts", "--json").json
    assert list(found["roles"]) == list(builtin_prompts().manifest.roles)
    blocks = found["roles"]["planner"]
    told = {
        target: [block["file"] for block in blocks if target in block["targets"]]
        for target in found["targets"]
    }
    assert told == {target: builtin_prompts().manifest.block_paths("planner", target) for target in told}
    files = [block["file"] for block in blocks]
    assert [files.index(f"{name}/architecture.md") for name in ("c", "trn1", "trn2")] == [2, 3, 4]
    assert files[-1] == "planner/ask.md"
    assert (found["replaced"], found["recorded"]) == ([], None)


def test_what_a_home_replaces_is_said_and_until_when_it_does_not_count(ctl, home):
    replace(home, "planner/ask.md", ASK)
    said = ctl("prompts").out
    assert f"1 file replaced by {home / 'prompts'}" in said
    assert (
        f"runs get {builtin_prompts().version[:12]} until whoever owns this home has taken the edit" in said
    )
    assert "planner/ask.md" in next(line for line in said.splitlines() if line.endswith("replaced"))
    take_edits(home)
    assert "until" not in ctl("prompts").out
    found = ctl("prompts", "--json").json
    assert found["recorded"] == found["version"] != builtin_prompts().version


def test_a_role_or_a_file_can_be_read(ctl, home):
    replace(home, "planner/ask.md", ASK)
    role = ctl("prompts", "--show", "planner", "--target", "trn1").out
    assert "--- trn1/architecture.md (always the same)\n# Hardware: Trainium1" in role
    assert "trn2" not in role.splitlines()[0]
    assert "Prefer what is simple." in role
    assert ctl("prompts", "--show", "planner/ask.md").out == ASK
    assert ctl("prompts", "--show", "planner/ask.md", "--json").json["text"] == ASK


def test_a_file_is_copied_into_the_home_to_be_edited(ctl, home):
    called = ctl("prompts", "--copy", "planner/ask.md")
    there = home / "prompts" / "planner" / "ask.md"
    assert (called.status, called.out) == (exits.OK, f"copied to {there}; edits of it count\n")
    assert there.read_text() == builtin_prompts().files["planner/ask.md"]
    assert [path.name for path in there.parent.iterdir()] == ["ask.md"]
    assert ctl("prompts", "--json").json["replaced"] == []
    there.write_text(ASK)
    assert ctl("prompts", "--json").json["replaced"] == ["planner/ask.md"]
    again = ctl("prompts", "--copy", "planner/ask.md")
    assert (again.status, there.read_text()) == (exits.USAGE, ASK)
    assert "is there already (remove it first)" in again.err
    for path, said in (("planner/aks.md", "did you mean planner/ask.md?"), ("manifest.toml", "no prompt")):
        assert ctl("prompts", "--copy", path).status == exits.NOT_THERE
        assert said in ctl("prompts", "--copy", path).err
    (home / "prompts" / "executor").write_text("")
    assert "File exists" in ctl("prompts", "--copy", "executor/task.md").err


def test_what_is_not_there_is_named_with_the_nearest(ctl):
    for words, said in (
        (("--show", "plannr"), "did you mean planner?"),
        (("--show", "planner/tsk.md"), "did you mean planner/task.md?"),
        (("--show", "planner", "--target", "trn9"), "there are x86, arm64, trn1, trn2, trn3"),
    ):
        called = ctl("prompts", *words)
        assert called.status == exits.USAGE
        assert said in called.err


def test_a_version_that_the_log_holds_can_be_read(ctl, home):
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    version = ctl("status", run, "--json").json["runs"][0]["prompts"]
    assert version == builtin_prompts().version
    assert f"prompts {version[:12]}" in ctl("tail", "--type", "RoundStarted").out
    with LogReader.open(home) as reader:
        kernel = reader.read(stream=run)[0].event.kernel
    replace(home, "planner/ask.md", ASK)
    take_edits(home)
    assert (
        ctl("prompts", "--version", version, "--show", "planner/ask.md").out
        == builtin_prompts().files["planner/ask.md"]
    )
    assert (
        f"prompts {ctl('prompts', '--json').json['version'][:12]}"
        in ctl("tail", "--type", "ConfigChanged").out
    )
    for other in ("0" * 64, "nonsense", kernel):
        called = ctl("prompts", "--version", other)
        assert called.status == exits.NOT_THERE
        assert f"no prompts '{other}' in this log" in called.err


def test_show_names_prompts_and_does_not_print_them(ctl, home):
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    shown = ctl("show", f"{run}@1", "--json").json
    assert shown["event"]["prompts"] == builtin_prompts().version
    assert builtin_prompts().version not in shown["blobs"]
    assert shown["event"]["kernel"] in shown["blobs"]


def test_faults_of_configuration_and_prompts_are_named_together(ctl, home):
    replace(home, "planner/task.md", "{{kernal}}")
    (home / "config.toml").write_text("[run.search]\nbeem = 7\n")
    called = ctl("config", "check")
    assert called.status == exits.USAGE
    assert "config.toml: run.search.beem: no such key" in called.err
    assert (
        "prompts/planner/task.md, line 1: {{kernal}}: no such value here; did you mean kernel?" in called.err
    )
    assert ctl("prompts").status == exits.USAGE
    (home / "config.toml").unlink()
    replace(home, "planner/task.md", "Plan.")
    assert ctl("config", "check").status == exits.OK


def test_files_that_are_told_where_they_fit_are_listed_with_how_far_they_were_checked(ctl, home):
    replace(home, "examples/scan.md", "# A scan\n\nOf one's own.\n")
    replace(home, "planner/approach/apply.md", "Apply the cheapest technique.\n")
    said = ctl("prompts").out
    assert "chosen per problem, plan or implementation:\n" in said
    assert " scan (replaced), " in next(
        line for line in said.splitlines() if line.startswith("  examples/: ")
    )
    assert "  planner/approach/: apply (replaced), inspired, different\n" in said
    items = ctl("prompts", "--json").json["items"]
    assert items["examples/range_mask.md"] == {
        "kind": "example",
        "version": 2,
        "status": "run",
        "source": "written for this project",
        "targets": ["trn2", "trn3"],
        "replaced": False,
    }
    assert items["examples/scan.md"]["replaced"]
    assert items["planner/task.md"]["kind"] == "block"


def queue_models_run(home) -> str:
    return fakes.submit_run(home, fake_models.LOOP)


def test_what_a_queued_run_would_send_is_shown_before_anything_is_paid(ctl, home):
    run = queue_models_run(home)
    listed = ctl("prompts", "--run", run)
    assert listed.status == exits.OK, listed.err
    assert (
        listed.out.splitlines()[0] == f"{run}: what each role would be sent now; plan and error are samples"
    )
    found = ctl("prompts", "--run", run, "--json").json
    assert [one["role"] for one in found["filled"]] == [
        "planner", "executor", "repairer", "reflector", "summarizer",
    ]  # fmt: skip
    by_role = {one["role"]: one for one in found["filled"]}
    assert "submit" in by_role["executor"]["tools"]
    assert by_role["planner"]["tools"] == []
    shown = ctl("prompts", "--run", run, "--show", "executor").out
    assert shown.startswith(f"--- executor to {fake_models.MODEL}, about ")
    assert "carry out a plan with tools" in shown
    assert "{{" not in shown, "every value is filled in"
    assert len([*(home / "inbox").glob("*.json")]) == 1, "it waits as before"


async def test_the_prompts_of_a_run_in_the_log_are_about_its_best_kernel_and_what_it_learnt(home):
    with EventLog.open(home) as log:
        run = await fake_models.finish_run(log, fake_models.FakeProvider(), fake_models.LOOP)
        state = log.run_state(run)
        best = log.get_blob(state.best.source).decode()
    found = await asyncio.to_thread(load_run_prompts, home, run, Config(daemon=fake_models.daemon_config()))
    text = {one.role: one.text for one in found.filled}
    assert best != constants_model.KERNEL
    assert best.strip() in text["planner"]
    assert best.strip() in text["executor"]
    assert f"{state.best.latency_ms:.4g}" in text["planner"]
    lessons = {one.lesson for one in state.reflections}
    assert any(f"{lesson}\n" in text["planner"] for lesson in lessons)
    assert found.version == state.next_prompts


def test_prompts_of_a_run_are_refused_in_a_line(ctl, home):
    run = queue_models_run(home)
    for words, said in (
        (("--run", "none-1"), "none-1"),
        (("--run", run, "--show", "planer"), "asks no role 'planer'; its roles are planner, executor"),
        (("--run", run, "--copy", "planner/ask.md"), "--run can be combined only with --show"),
    ):
        called = ctl("prompts", *words)
        assert called.status != exits.OK
        assert said in called.err
        assert "Traceback" not in called.err
