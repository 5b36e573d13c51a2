"""What a run would cost is said before it starts, from its real prompts, with nothing started."""

from __future__ import annotations

import asyncio
import json

import pytest

import seeds
from agent_core.prompting import builtin_prompts
from agent_core.providers.windows import estimate_request_tokens, estimate_tokens
from agent_core.tools.registry import list_tools
from agentctl.cost_estimate import (
    ANSWER_TOKENS,
    SESSION_PLANS,
    SESSION_TURNS,
    estimate_cost,
    render_first_request,
)
from agentctl.dry_run import format_estimate
from agentctl.sample_requests import SampleRequests
from daemon.config import Config
from state.log import EventLog
from state.model import LlmConfig, RunConfig, SearchConfig
from tests.daemon.calls import fake_models as models
from tests.daemon.calls.fake_models import MODEL
from tests.support import constants_model

PROBLEM = seeds.load_problem("silu")
SEARCH = SearchConfig(beam=3, plans=4, implementations=2, rounds=3, repairs=2, top_k=2)


def config(*planner: str, prices: tuple[str, ...] = (models.PRICE,), **llm) -> Config:
    run = RunConfig(
        problem="silu",
        planner=planner,
        cap_usd=5.0,
        llm=LlmConfig(**({"models": (MODEL,)} | llm)),
        search=SEARCH,
    )
    return Config(run=run, daemon=models.daemon_config(prices=prices))


def rows(settings: Config) -> dict[tuple[str, str], object]:
    found = estimate_cost(settings, PROBLEM, PROBLEM.kernel, builtin_prompts())
    return {(row.role, row.model): row for row in found.rows}


def test_calls_follow_from_the_search(caplog):
    found = {role: (row.calls, row.most_calls) for (role, _), row in rows(config("local")).items()}
    slots = 1 + 2 * 3  # the first round improves the initial kernel alone
    kernels = slots * 4 * 2
    assert found == {
        "planner": (slots * 4, slots * 4),
        "executor": (kernels, kernels),
        "repairer": (0, 2 * kernels),
        "reflector": (kernels, kernels),
        "summarizer": (6, 6),
    }


def test_a_session_is_asked_once_a_turn_with_all_that_came_before():
    asked, looped = rows(config("local")), rows(config("local", form="loop", turns=8))
    one, many = asked["executor", MODEL], looped["executor", MODEL]
    assert many.calls == SESSION_TURNS * one.calls
    assert many.most_calls == 8 * one.most_calls
    assert many.usd > one.usd
    assert many.most_usd > 8 * one.most_usd, "each turn may be longer than the one before"
    assert looped["planner", MODEL] == asked["planner", MODEL]
    mixed = rows(config("local", form="loop", repairer_form="question", turns=8))
    assert mixed["repairer", MODEL] == asked["repairer", MODEL]


def test_the_estimate_of_a_session_begins_with_the_session_s_own_prompt_and_its_tools():
    settings = config("local", form="loop", turns=1)
    row = rows(settings)["executor", MODEL]
    stand_in = SampleRequests(settings.run, PROBLEM, PROBLEM.kernel)
    first = render_first_request(stand_in, "executor", MODEL, settings, builtin_prompts())
    assert [tool.name for tool in first.tools] == [tool.name for tool in list_tools("trn2")]
    assert row.input_tokens == estimate_request_tokens(first)
    assert "carry out a plan with tools" in "".join(part.text for part in (*first.guide, *first.case))
    assert "The kernel of this plan that was refused" not in "".join(part.text for part in first.case)
    repair = render_first_request(stand_in, "repairer", MODEL, settings, builtin_prompts())
    assert "The kernel of this plan that was refused" in "".join(part.text for part in repair.case)


def test_a_planner_s_session_answers_for_several_plans_and_reads_with_its_own_tools():
    asked, looped = rows(config("local")), rows(config("local", planner_form="loop", turns=8))
    one, many = asked["planner", MODEL], looped["planner", MODEL]
    assert many.calls * SESSION_PLANS == pytest.approx(SESSION_TURNS * one.calls)
    assert many.most_calls == 8 * one.most_calls, "each session may submit one plan alone"
    assert looped["executor", MODEL] == asked["executor", MODEL]
    settings = config("local", planner_form="loop")
    stand_in = SampleRequests(settings.run, PROBLEM, PROBLEM.kernel)
    first = render_first_request(stand_in, "planner", MODEL, settings, builtin_prompts())
    assert [tool.name for tool in first.tools] == [tool.name for tool in list_tools("trn2", planning=True)]
    assert "plan changes with tools" in "".join(part.text for part in first.guide)


def test_calls_are_those_that_the_cap_pays_for_where_rounds_are_fitted_to_it():
    settings = config("local", scale_to_cap=True)
    free = settings.model_copy(update={"run": settings.run.model_copy(update={"cap_usd": 1e6})})
    dear = estimate_cost(settings, PROBLEM, PROBLEM.kernel, builtin_prompts())
    wide = estimate_cost(free, PROBLEM, PROBLEM.kernel, builtin_prompts())
    assert [one.most_calls for one in dear.rows] == [one.most_calls for one in wide.rows]
    tight = settings.run.model_copy(update={"cap_usd": wide.usd / 3})
    narrow = estimate_cost(
        settings.model_copy(update={"run": tight}), PROBLEM, PROBLEM.kernel, builtin_prompts()
    )
    assert narrow.usd < wide.usd / 3, "it is within the cap"
    calls = {row.role: row.calls for row in narrow.rows}
    assert calls["executor"] == pytest.approx(sum(one.attempts for one in narrow.breadths))
    assert calls["planner"] == pytest.approx(sum(one.kernels * one.plans for one in narrow.breadths))
    text = "\n".join(format_estimate(wide))
    assert "round 1: 1 kernel, 3 plans for each, carried out once (run.llm.scale_to_cap)" in text
    assert "rounds 2 to 3: 3 kernels, 4 plans for each, carried out 2 times (run.llm.scale_to_cap)" in text


def work_for_turns(turns: int):
    """Return the script of a model that sends other kernels to `check` in most turns of its sessions.

    Its tokens are counted as they are estimated, and none come from a cache.
    """

    def script(request, delivery):
        said = models.answer_request(request, delivery)
        if request.tools:
            at = len(request.dialogue)
            source = f"{constants_model.KERNEL}# {at}\n" + "# what is tried here\n" * 150
            called = ("check", {"source": source}) if at < turns - 1 else ("give_up", {"reason": "enough"})
            said = models.complete_turn(request, "I look.", [(called[0], json.dumps(called[1]))])
        whole = models.complete_turn(request, said) if isinstance(said, str) else said
        counted = whole.tokens.model_copy(update={"input": estimate_request_tokens(request)})
        return whole.model_copy(update={"tokens": counted})

    return script


async def test_what_sessions_really_use_lies_between_the_usual_and_the_most(home):
    search = SearchConfig(
        beam=1, plans=1, implementations=1, rounds=1, explorers=0, repairs=0, within_percent=0
    )
    run_config = models.LOOP.model_copy(update={"search": search})
    settings = Config(run=run_config, daemon=models.daemon_config())
    provider = models.FakeProvider(work_for_turns(run_config.llm.turns))
    with EventLog.open(home) as log:
        run = await models.finish_run(log, provider, run_config)
        state = log.run_state(run)
        calls = [item.event for item in log.read(stream=run, limit=10_000) if item.type == "CallCompleted"]
    found = await asyncio.to_thread(
        estimate_cost, settings, seeds.load_problem("silu"), constants_model.KERNEL, builtin_prompts()
    )
    row = next(one for one in found.rows if one.role == "executor")
    turns = [one for one in calls if one.key.endswith(".executor")]
    assert row.calls <= len(turns) == run_config.llm.turns <= row.most_calls
    assert row.calls * row.input_tokens < sum(one.tokens.input for one in turns)
    assert row.usd < sum(one.cost_usd for one in turns) < row.most_usd
    assert found.usd < state.spent_usd < found.most_usd


def test_models_share_their_roles_by_weight_and_planners_by_turns():
    cheap = "local/cheap"
    found = rows(config("local", "builtin", models=(f"{MODEL}=3", cheap), summarizer_models=(cheap,)))
    assert found["planner", MODEL].calls == 3 * found["planner", cheap].calls == 0.75 * 14
    assert ("reflector", MODEL) not in found
    assert found["reflector", cheap].calls == 28


@pytest.mark.parametrize(
    ("planners", "models", "parts"),
    [
        (("local", "openai"), ("local/a=3", "openai/b"), {"local/a": 1 / 2, "openai/b": 1 / 2}),
        (("local", "openai"), ("local/a=3", "local/c", "openai/b=9"),
         {"local/a": 3 / 8, "local/c": 1 / 8, "openai/b": 1 / 2}),
        (("local", "llm"), ("local/a", "openai/b=3"), {"local/a": 5 / 8, "openai/b": 3 / 8}),
        (("local", "local", "openai"), ("local/a", "openai/b"), {"local/a": 2 / 3, "openai/b": 1 / 3}),
    ],
)  # fmt: skip
def test_planners_have_slots_by_turns_whatever_their_models_weigh(planners, models, parts):
    found = rows(config(*planners, models=models))
    for role, calls in {"planner": 28, "executor": 56, "reflector": 56}.items():
        assert {model: row.calls for (of, model), row in found.items() if of == role} == pytest.approx(
            {model: calls * part for model, part in parts.items()}
        )


def test_prompts_are_the_real_ones_and_cost_what_they_cost():
    row = rows(config("local"))["executor", MODEL]
    assert row.input_tokens > estimate_tokens(PROBLEM.kernel) + estimate_tokens(
        PROBLEM.files["reference.py"].decode()
    )
    assert 1000 < row.shared_tokens < row.input_tokens
    assert row.output_tokens == min(ANSWER_TOKENS["executor"] + estimate_tokens(PROBLEM.kernel), 16_000)
    rest = row.input_tokens - row.shared_tokens
    each = (rest * 3 + row.shared_tokens * 0.3 + row.output_tokens * 15) / 1e6
    assert row.usd == pytest.approx(row.calls * each)
    assert row.most_usd == pytest.approx(row.most_calls * (row.input_tokens * 3 + 8_192 * 15) / 1e6)


def test_an_unknown_price_makes_an_unknown_sum_and_says_what_to_set():
    found = estimate_cost(config("local", prices=()), PROBLEM, PROBLEM.kernel, builtin_prompts())
    assert (found.usd, found.most_usd) == (None, None)
    text = "\n".join(format_estimate(found))
    assert f"nobody knows what {MODEL} costs" in text
    assert "unknown" in text


def test_a_run_without_models_costs_nothing():
    found = estimate_cost(config("builtin"), PROBLEM, PROBLEM.kernel, builtin_prompts())
    assert (found.rows, found.usd) == ((), 0)
    assert format_estimate(found) == ["no planner of this run asks a model: it costs nothing"]


MODELS = (
    "--set", 'run.planner=["local"]', "--set", f'run.llm.models=["{MODEL}"]', "--set", "run.cap_usd=5",
    "--set", f'daemon.prices=["{models.PRICE}"]', "--problem", "silu",
)  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_dry_run_starts_nothing(ctl, home, verb):
    called = ctl(verb, "--dry-run", *MODELS)
    assert called.status == 0
    assert called.out.splitlines()[0].split() == [
        "role",
        "model",
        "calls",
        "tokens",
        "in",
        "shared",
        "out",
        "US$",
    ]
    assert "in all $" in called.out
    assert "$5.00 (run.cap_usd)" in called.out
    assert not (home / "events.db").exists()
    assert not list(home.glob("inbox/*"))


def test_a_dry_run_in_json_has_the_rows(ctl):
    said = ctl("--json", "run", "--dry-run", *MODELS).json
    assert {row["role"] for row in said["rows"]} == set(ANSWER_TOKENS)
    assert said["usd"] == pytest.approx(sum(row["usd"] for row in said["rows"]))


def test_a_dry_run_says_what_keeps_the_run_from_starting(ctl):
    called = ctl("run", "--dry-run", "--set", 'run.planner=["local"]', "--problem", "silu")
    assert called.status != 0
    assert "no model is given for local" in called.err


@pytest.mark.parametrize(
    ("planner", "window", "said"),
    [
        ("anthropi", "64000", "run.planner: no proposer is called 'anthropi' (did you mean 'anthropic'?)"),
        ("local", "4096", "use a model with a larger context window"),
    ],
)
def test_a_dry_run_is_refused_in_a_line(ctl, planner, window, said):
    models = [word.replace('["local"]', f'["{planner}"]') for word in MODELS]
    called = ctl("run", "--dry-run", *models, "--set", f'daemon.windows=["{MODEL}={window}/2048"]')
    assert called.status == 2
    assert said in called.err
    assert "Traceback" not in called.err


def test_a_dry_run_needs_no_key(ctl, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    model = 'run.llm.models=["anthropic/claude-sonnet-4-5"]'
    called = ctl(
        "run", "--dry-run", "--problem", "silu", "--rounds", "1", "--set", "run.cap_usd=5",
        "--set", 'run.planner=["anthropic"]', "--set", model,
    )  # fmt: skip
    assert called.status == 0, called.err
