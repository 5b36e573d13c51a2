"""Sets of prompts: what is replaced is checked as a whole, and rendered in the order that caches need."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent_core.prompting import (
    PromptSet,
    PromptsInvalid,
    RenderError,
    TextLifetime,
    assemble_prompts,
    builtin_prompts,
)

ROLES = ("planner", "executor", "repairer", "session", "summarizer", "reflector", "planner_session")
TARGETS = ("trn1", "trn2", "trn3")


def faults(**files: bytes) -> tuple[str, ...]:
    with pytest.raises(PromptsInvalid) as raised:
        assemble_prompts({path.replace("__", "/") + ".md": data for path, data in files.items()})
    assert str(raised.value) == "\n".join(raised.value.faults)
    return raised.value.faults


def values(role: str, **given: str) -> dict[str, str]:
    names = builtin_prompts().manifest.roles[role].values
    return {name: given.get(name, f"<{name}>") for name in names}


# --- the program's own ------------------------------------------------------------------------------


def test_the_program_s_own_set_has_no_faults():
    own = builtin_prompts()
    again = assemble_prompts(
        {path: text.encode() for path, text in own.files.items() if path.endswith(".md")}
    )
    assert again == own
    assert tuple(own.manifest.roles) == ROLES
    assert set(own.manifest.targets) >= set(TARGETS)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("target", TARGETS)
def test_each_value_of_a_role_is_told_and_what_stays_longest_comes_first(role, target):
    blocks = builtin_prompts().render_role(role, target, values(role))
    told = "\n".join(block.text for block in blocks)
    assert [name for name in builtin_prompts().manifest.roles[role].values if f"<{name}>" not in told] == []
    assert "{{" not in told
    assert all(before.lasts <= after.lasts for before, after in pairwise(blocks))
    assert blocks[0].lasts is TextLifetime.RELEASE
    assert blocks[-1].lasts is TextLifetime.CALL


def test_plans_for_one_kernel_share_all_but_the_end_of_their_prompt():
    first, second = (
        builtin_prompts().render_role(
            "planner", "trn2", values("planner", menu=menu, approach=menu, place=menu)
        )
        for menu in ("one", "two")
    )
    same = [one == other for one, other in zip(first, second, strict=True)]
    assert same == [True] * (len(first) - 1) + [False]
    other_kernel = builtin_prompts().render_role("planner", "trn2", values("planner", kernel="x"))
    assert [one.lasts for one, other in zip(first, other_kernel, strict=True) if one != other] == [
        TextLifetime.CANDIDATE,
        TextLifetime.CALL,
    ]


def test_the_target_decides_which_hardware_is_told_of():
    first, *others = (builtin_prompts().role_blocks("executor", target) for target in TARGETS)
    for second in others:
        assert [one.path for one, other in zip(first, second, strict=True) if one != other] == [
            "trn1/architecture.md",
            "trn1/api.md",
        ]


# --- rendering --------------------------------------------------------------------------------------


def test_what_looks_like_a_name_inside_a_value_stays_as_it_is():
    kernel = "d = {{1: 2}}  # {{plan}}"
    told = builtin_prompts().render_role(
        "executor", "trn2", values("executor", kernel=kernel, plan="secret plan")
    )
    assert kernel in told[-2].text
    assert sum(block.text.count("secret plan") for block in told) == 1


@pytest.mark.parametrize(
    ("role", "target", "given", "words"),
    [
        ("planer", "trn2", {}, "no role 'planer'; there are planner, executor"),
        ("planner", "trn9", values("planner"), "no target 'trn9'; there are x86, arm64, trn1, trn2, trn3"),
        ("executor", "trn2", {}, "kernel is missing"),
        ("executor", "trn2", {**values("executor"), "colour": "red"}, "colour is none of its values"),
    ],
)
def test_a_prompt_is_rendered_from_exactly_its_values(role, target, given, words):
    with pytest.raises(RenderError, match=words):
        builtin_prompts().render_role(role, target, given)


# --- replacing --------------------------------------------------------------------------------------


def test_a_file_replaces_one_and_the_version_tells():
    text = builtin_prompts().files["planner/ask.md"] + "\nPrefer what is simple.\n"
    fresh = assemble_prompts({"planner/ask.md": text.encode()})
    assert fresh.changed_paths(builtin_prompts()) == ("planner/ask.md",)
    assert fresh.version != builtin_prompts().version
    assert "Prefer what is simple." in fresh.render_role("planner", "trn1", values("planner"))[-1].text
    assert fresh.role_blocks("executor", "trn1") == builtin_prompts().role_blocks("executor", "trn1")
    assert assemble_prompts({}) == builtin_prompts()


def test_line_ends_of_another_system_make_no_other_version():
    text = builtin_prompts().files["planner/task.md"].replace("\n", "\r\n")
    assert assemble_prompts({"planner/task.md": text.encode()}).version == builtin_prompts().version


def test_a_set_can_be_kept_and_read_back():
    fresh = assemble_prompts({"executor/task.md": b"Write it.\n"})
    again = PromptSet.from_json(fresh.to_json())
    assert (again, again.version) == (fresh, fresh.version)
    assert again.render_role("executor", "trn2", values("executor")) == fresh.render_role(
        "executor", "trn2", values("executor")
    )


def test_all_faults_of_all_files_are_named_at_once():
    found = faults(
        planner__task=b"{{kernal}}\n{{ x }} }}\n",
        plannr__task=b"x",
        guide__api=b"ab\xff",
        guide__role=b" \n",
        executor__task=b"x" * 70_000,
    )
    assert found == (
        "executor/task.md: 70000 bytes, at most 65536 are allowed",
        "guide/api.md: not UTF-8, at byte 2",
        "guide/role.md: is empty; remove it to have the program's own",
        "plannr/task.md: no such prompt; did you mean planner/task.md?",
        "planner/task.md, line 2: '{{' and '}}' go around the name of a value, as in {{kernel}}",
        "planner/task.md, line 1: {{kernal}}: no such value here; did you mean kernel?",
    )


@pytest.mark.parametrize(
    "key",
    [
        "sk-" + "ant-api03-" + "x" * 40,
        "AKIA" + "Q" * 16,
        "ghp_" + "a1" * 18,
        "-----BEGIN " + "RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_key_is_not_taken_into_the_log(key):
    (found,) = faults(executor__task=f"Write it.\nUse {key}.".encode())
    assert found.startswith("executor/task.md, line 2: looks like a secret key")
    assert key not in found
    assert assemble_prompts({"executor/task.md": b"Use risk-free and task-oriented words, sk-short."})


def test_the_manifest_cannot_be_replaced():
    with pytest.raises(PromptsInvalid, match=r"manifest\.toml: says what there must be"):
        assemble_prompts({"manifest.toml": b"roles = {}"})


def test_what_a_role_needs_must_be_named_by_one_of_its_files():
    (found,) = faults(planner__ask=b"{{menu}}")
    assert found.startswith("planner/ask.md: the planner needs {{profile}}: counters of ")
    moved = {"planner/kernel.md": b"{{standing}}", "planner/ask.md": b"{{kernel}} {{menu}} {{profile}}"}
    assert assemble_prompts(moved).changed_paths(builtin_prompts()) == ("planner/ask.md", "planner/kernel.md")
    fewer = assemble_prompts({"planner/memory.md": b"Nothing was learnt."})
    assert fewer.changed_paths(builtin_prompts()) == ("planner/memory.md",)


def test_a_shared_file_names_only_what_all_its_roles_have():
    (found,) = faults(guide__role=b"{{menu}}")
    assert found == "guide/role.md, line 1: {{menu}}: no such value here; there are fault"
    (found,) = faults(guide__problem=b"{{problem}} {{reference}} {{menu}}")
    assert found.startswith("guide/problem.md, line 1: {{menu}}: no such value here; there are kernel")


def test_a_file_must_not_change_more_often_than_what_is_behind_it():
    found = faults(planner__task=b"{{kernel}}")
    behind = {"c/plan_example.md", "guide/plan_example.md"}
    before = "planner/task.md: changes from candidate to candidate, so that"
    assert {one.removeprefix(before).split()[0] for one in found} == behind


# --- packs ------------------------------------------------------------------------------------------

PACK = """
family = "toy"
targets = ["toy"]
[blocks]
rules = "toy/rules.md"
[words]
kernels = "toy kernels"
"""
SHARED = """
max_bytes = 100
[values.kernel]
lasts = "call"
means = "the kernel"
[roles.planner]
blocks = ["role.md", "@architecture", "@rules", "ask.md"]
required = ["kernel"]
"""


def toy_set(**files: str) -> PromptSet:
    texts = {"role.md": "About {{@kernels}}.\n", "toy/rules.md": "Two lines.\n", "ask.md": "{{kernel}}\n"}
    return PromptSet({"manifest.toml": SHARED, "toy/manifest.toml": PACK, **texts, **files})


def test_a_pack_brings_blocks_and_words_and_may_leave_blocks_out():
    told = toy_set().render_role("planner", "toy", {"kernel": "scale = 2"})
    assert [(block.path, block.text) for block in told] == [
        ("role.md", "About toy kernels.\n"),
        ("toy/rules.md", "Two lines.\n"),
        ("ask.md", "scale = 2\n"),
    ]
    with pytest.raises(RenderError, match="no target 'trn2'; there are toy"):
        toy_set().role_blocks("planner", "trn2")


def test_a_set_of_a_log_from_before_there_were_packs_is_rendered_as_ever():
    old = 'targets = ["trn1", "trn2"]\n' + SHARED.replace('"@architecture", "@rules"', '"@target/api.md"')
    logged = PromptSet(
        {"manifest.toml": old, "role.md": "a", "trn1/api.md": "1", "trn2/api.md": "2", "ask.md": "b"}
    )
    again = PromptSet.from_json(logged.to_json())
    told = [block.text for block in again.render_role("planner", "trn2", {"kernel": "k"})]
    assert (again.manifest.targets, told) == (("trn1", "trn2"), ["a", "2", "b"])


def test_words_that_no_pack_has_are_named():
    (found,) = faults(planner__ask=b"{{menu}} {{profile}}\n{{@kernel}}")
    assert found.startswith("planner/ask.md, line 2: {{@kernel}}: no such words of the targets; there are ")
    with pytest.raises(PromptsInvalid, match=r"nki/manifest\.toml: says what there must be"):
        assemble_prompts({"nki/manifest.toml": b"words = {}"})
