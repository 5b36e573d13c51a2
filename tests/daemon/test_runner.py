"""The runner: every way in which a role can answer or fail has its outcome in the log."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent_core.decide import decide
from agent_core.effects import (
    STARTED,
    Effect,
    LookAheadRequest,
    PlanRequest,
    Record,
    ReflectRequest,
    SummarizeRequest,
    Variants,
)
from agent_core.roles import KernelAnswer, PlanAnswer, PredictionsEndedError, RoleError
from agent_core.roles.scripted import ScriptedProposer
from daemon import predicting_roles
from daemon.calls.errors import EffectDeferred
from daemon.command_models import run_id
from daemon.commands import CommandHandler
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.runner import EffectRunner
from daemon.workers import Workers
from remote.errors import InfrastructureError
from state.errors import BlobMissing
from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    ReflectionRecorded,
    RoundDeadlinePassed,
    RunResumed,
)
from state.log import EventLog
from state.model import (
    EffectKey,
    ErrorInfo,
    EvaluationRequest,
    ExperienceKind,
    PauseCause,
    Plan,
    Prediction,
    PredictionGrade,
    Role,
    RunStatus,
    StopReason,
    Usage,
    digest_of,
)
from state.records import NewEvent
from tests.support import fakes

NO_PAUSE = EvaluationRetryPolicy(tries=3, first_pause=0.0)
PLAN = Plan(technique="tile", site="TILE_M", title="wider", prediction=Prediction(speedup=1.5))


class Faulty:
    """A proposer whose roles do what `answer` does."""

    name = "faulty"
    repairs = True

    def __init__(self, answer) -> None:
        self._answer = answer

    async def plan(self, request, read):
        return self._answer(request)

    implement = summarize = reflect = plan

    async def aclose(self) -> None: ...


class Judge(fakes.FakeEvaluator):
    """Fails as often as it is told, then judges."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    async def evaluate(self, request, blobs, /):
        if self.failures:
            raise self.failures.pop(0)
        return await super().evaluate(request, blobs)


def raise_in_proposer(error: Exception):
    def answer(request):
        raise error

    return answer


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


async def start(event_log: EventLog, config=fakes.CONFIG, id_: str = "first") -> str:
    submission = fakes.create_submission(config)
    workers = fakes.fake_workers()
    commands = CommandHandler(event_log, workers, touched=lambda *_: None)
    await commands.handle(id_, submission.model_dump_json().encode())
    return run_id(id_, config.problem)


async def admit(event_log: EventLog, run: str, effect: Effect) -> str:
    request = effect.request.model_dump_json().encode()
    started = STARTED[effect.key.role](key=str(effect.key), request=digest_of(request))
    await event_log.append([NewEvent(run, started)], blobs=[request, *effect.blobs])
    return digest_of(request)


async def perform(event_log, run, effect, runner):
    await runner.perform(run, effect.key, await admit(event_log, run, effect))
    return event_log.run_state(run).outcomes[str(effect.key)]


def workers_with(proposer=None, judge=None) -> Workers:
    return Workers(
        create_evaluator=lambda _: judge or fakes.FakeEvaluator(), create_proposer=lambda _: proposer
    )


def look_ahead(event_log: EventLog, run: str) -> Effect:
    """Return the effect of looking ahead from the initial kernel, as `decide` asks for it."""
    state = event_log.run_state(run)
    key = EffectKey(1, 0, 0, 0, 0, Role.PREDICTOR)
    request = LookAheadRequest(
        key=str(key), role=key.role, draw=1, problem=state.problem, size=state.config.size,
        target=state.config.target, toolchain=state.toolchain, parent=state.initial, known=(),
        context=digest_of(b""), variants=2, depth=4, width=2, predictions=9, instructions=99,
    )  # fmt: skip
    return Effect(key, request)


async def test_looking_ahead_records_what_it_found_and_stores_the_kernels(event_log):
    run, _ = await in_first_round(event_log)
    effect = look_ahead(event_log, run)
    batch = await perform(event_log, run, effect, EffectRunner(event_log, workers_with(ScriptedProposer())))
    assert isinstance(batch, PredictionBatch)
    seen = Variants.model_validate_json(event_log.get_blob(batch.variants))
    assert (batch.count, len(seen.found)) == (2, 2)
    assert batch.best_ms == seen.found[0].latency_ms
    assert batch.predicted + batch.failed == batch.instructions == 6
    assert all(event_log.get_blob(one.source) for one in seen.found)


class Oracle(fakes.FakeEvaluator):
    """Predicts after as many failures as it is told."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    async def predict(self, request, blobs, /):
        if self.failures:
            raise self.failures.pop(0)
        return await super().predict(request, blobs)


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ((InfrastructureError("host_lost", "gone"),), None),
        ((InfrastructureError("host_lost", "gone"),) * 3, "host_lost"),
        ((InfrastructureError("weak_jail", "no", retryable=False),), "weak_jail"),
        ((KeyError("a bug"),), "internal"),
    ],
)
async def test_predictions_are_tried_again_as_evaluations_are(event_log, failures, code):
    run, _ = await in_first_round(event_log)
    runner = EffectRunner(event_log, workers_with(ScriptedProposer(), Oracle(*failures)), retry=NO_PAUSE)
    batch = await perform(event_log, run, look_ahead(event_log, run), runner)
    assert (batch.error and batch.error.code) == code
    assert (batch.variants is None) == (code is not None)


async def test_looking_ahead_ends_when_its_round_has_closed(event_log):
    class Closing(Oracle):
        async def predict(self, request, blobs, /):
            await event_log.append([NewEvent(run, RoundDeadlinePassed(round=1))])
            return await super().predict(request, blobs)

    class Patient(ScriptedProposer):
        async def look_ahead(self, request, read, predict):
            for _ in range(9):
                asked.append(await predict([f"x = {len(asked)}"]))
            return await super().look_ahead(request, read, predict)

    asked: list[object] = []
    run, _ = await in_first_round(event_log)
    effect = look_ahead(event_log, run)
    runner = EffectRunner(event_log, workers_with(Patient(), Closing()))
    await runner.perform(run, effect.key, await admit(event_log, run, effect))
    assert len(asked) == 1
    ends = [item.event for item in event_log.read(stream=run) if isinstance(item.event, PredictionBatch)]
    assert [end.error.code for end in ends if end.error] == ["round_over"]


@pytest.mark.parametrize(
    ("cap_seconds", "share", "answered"),
    [(1000.0, 0.0, "_12__"), (1000.0, 1.0, "01234"), (None, 0.0, "01234")],
)
async def test_looking_ahead_leaves_time_to_judge(event_log, monkeypatch, cap_seconds, share, answered):
    class Asking(ScriptedProposer):
        async def look_ahead(self, request, read, predict):
            for number in range(5):
                try:
                    await predict([f"x = {number}"])
                    told.append(f"{number}")
                except PredictionsEndedError:
                    told.append("_")
            return await super().look_ahead(request, read, predict)

    monkeypatch.setattr(predicting_roles, "LOOK_AHEAD_SHARE", share)
    monkeypatch.setattr(predicting_roles, "LAST_PREDICTIONS", 2)
    told: list[str] = []
    run, _ = await in_first_round(event_log, fakes.CONFIG.model_copy(update={"cap_seconds": cap_seconds}))
    runner = EffectRunner(event_log, workers_with(Asking()))
    effect = look_ahead(event_log, run)
    await runner.perform(run, effect.key, await admit(event_log, run, effect))
    assert "".join(told) == answered


async def next_effects(event_log: EventLog, run: str) -> list[Effect]:
    """Append what is decided until effects are asked for."""
    while True:
        decisions = decide(event_log.run_state(run))
        records = [item for item in decisions if isinstance(item, Record)]
        if not records:
            return [item for item in decisions if isinstance(item, Effect)]
        await event_log.append([NewEvent(run, event) for record in records for event in record.events])


async def in_first_round(event_log: EventLog, config=fakes.CONFIG) -> tuple[str, list[Effect]]:
    run = await start(event_log, config)
    runner = EffectRunner(event_log, fakes.fake_workers())
    (initial,) = await next_effects(event_log, run)
    await perform(event_log, run, initial, runner)
    return run, await next_effects(event_log, run)


def effect_for(event_log: EventLog, run: str, role: Role) -> Effect:
    """Return an effect of a role in the first round, as `decide` might ask for it."""
    initial = event_log.run_state(run).initial
    key = EffectKey(1, 0, 0, 0, 0, role)
    common = {"key": str(key), "role": role.value}
    requests = {
        Role.SUMMARIZER: SummarizeRequest(
            **common, kind=ExperienceKind.POSITIVE, slow=initial, fast=initial, plan=PLAN
        ),
        Role.REFLECTOR: ReflectRequest(
            **common, operator="silu", parent=initial, plan=PLAN, evaluation=None,
            error=ErrorInfo(code="nothing", message="no kernel"),
        ),
    }  # fmt: skip
    return Effect(key, requests[role])


async def test_a_plan_and_a_kernel(event_log):
    run, effects = await in_first_round(event_log)
    usage = Usage(cost_usd=0.25, input_tokens=10, output_tokens=2)
    planned = await perform(
        event_log,
        run,
        effects[0],
        EffectRunner(event_log, workers_with(Faulty(lambda _: PlanAnswer(PLAN, usage)))),
    )
    assert planned == PlanProposed(key=str(effects[0].key), plan=PLAN, usage=usage)
    (implement, *_) = [e for e in await next_effects(event_log, run) if e.key.role is Role.EXECUTOR]
    answer = KernelAnswer("TILE_M = 1\n", "one")
    made = await perform(
        event_log, run, implement, EffectRunner(event_log, workers_with(Faulty(lambda _: answer)))
    )
    assert isinstance(made, KernelProposed)
    assert (made.author, made.note) == ("faulty", "one")
    assert event_log.get_blob(made.source) == b"TILE_M = 1\n"
    assert event_log.run_state(run).spent_usd == 0.25


@pytest.mark.parametrize(
    ("error", "code", "cost"),
    [
        (RoleError(ErrorInfo(code="refused", message="no"), Usage(cost_usd=0.5)), "refused", 0.5),
        (ZeroDivisionError("a bug"), "internal", 0.0),
    ],
)
async def test_a_planner_that_fails_or_breaks(event_log, error, code, cost):
    run, effects = await in_first_round(event_log)
    runner = EffectRunner(event_log, workers_with(Faulty(raise_in_proposer(error))))
    failed = await perform(event_log, run, effects[0], runner)
    assert isinstance(failed, PlanFailed)
    assert failed.error.code == code
    assert event_log.run_state(run).spent_usd == cost


@pytest.mark.parametrize("error", [RoleError(ErrorInfo(code="refused", message="no")), KeyError("a bug")])
async def test_an_executor_that_fails_or_breaks(event_log, error):
    run, effects = await in_first_round(event_log)
    planner = EffectRunner(event_log, workers_with(Faulty(lambda _: PlanAnswer(PLAN))))
    await perform(event_log, run, effects[0], planner)
    (implement, *_) = [e for e in await next_effects(event_log, run) if e.key.role is Role.EXECUTOR]
    failed = await perform(
        event_log, run, implement, EffectRunner(event_log, workers_with(Faulty(raise_in_proposer(error))))
    )
    assert isinstance(failed, ExecutionFailed)


@pytest.mark.parametrize("error", [RoleError(ErrorInfo(code="refused", message="no")), KeyError("a bug")])
async def test_a_summarizer_that_fails_makes_no_experience(event_log, error):
    run, _ = await in_first_round(event_log)
    effect = effect_for(event_log, run, Role.SUMMARIZER)
    failed = await perform(
        event_log, run, effect, EffectRunner(event_log, workers_with(Faulty(raise_in_proposer(error))))
    )
    assert failed == ExperienceRecorded(key=str(effect.key), experience=None)


@pytest.mark.parametrize("error", [RoleError(ErrorInfo(code="refused", message="no")), KeyError("a bug")])
async def test_a_reflector_that_fails_leaves_the_mechanical_grade(event_log, error):
    run, _ = await in_first_round(event_log)
    effect = effect_for(event_log, run, Role.REFLECTOR)
    noted = await perform(
        event_log, run, effect, EffectRunner(event_log, workers_with(Faulty(raise_in_proposer(error))))
    )
    assert isinstance(noted, ReflectionRecorded)
    assert noted.reflection.grade is PredictionGrade.FAILED
    assert noted.reflection.technique == PLAN.technique


async def test_a_failing_log_is_no_failure_of_the_role(event_log):
    run, effects = await in_first_round(event_log)
    runner = EffectRunner(event_log, workers_with(Faulty(raise_in_proposer(BlobMissing("gone")))))
    with pytest.raises(BlobMissing):
        await perform(event_log, run, effects[0], runner)
    assert str(effects[0].key) in event_log.run_state(run).open


async def test_the_slots_planner_is_asked(event_log):
    run, effects = await in_first_round(event_log)
    asked = []

    def proposer(name):
        asked.append(name)
        return Faulty(lambda _: PlanAnswer(PLAN))

    workers = Workers(create_evaluator=lambda _: fakes.FakeEvaluator(), create_proposer=proposer)
    await perform(event_log, run, effects[0], EffectRunner(event_log, workers))
    assert asked == ["scripted"]


# --- evaluation ------------------------------------------------------------------------------------


async def test_an_evaluation_comes_with_its_counters(event_log):
    run = await start(event_log)
    (initial,) = await next_effects(event_log, run)
    judged = await perform(event_log, run, initial, EffectRunner(event_log, fakes.fake_workers()))
    assert isinstance(judged, EvaluationCompleted)
    assert judged.evaluation.is_correct
    assert judged.cached_from is None
    *_, profile, completed = event_log.read(stream=run)
    assert [profile.type, completed.type] == ["ProfileRecorded", "EvaluationCompleted"]
    assert profile.event.counters == {"dma_active_time_percent": judged.evaluation.benchmark.latency_ms}
    assert json.loads(event_log.get_blob(profile.event.profile))["bottleneck"] == "dma"


async def test_a_verdict_is_used_again_by_another_run_and_says_where_it_is_from(event_log):
    judge = fakes.FakeEvaluator()
    runner = EffectRunner(event_log, fakes.fake_workers(judge))
    seen = []
    for id_ in ("first", "second"):
        run = await start(event_log, id_=id_)
        (initial,) = await next_effects(event_log, run)
        seen.append((run, await perform(event_log, run, initial, runner)))
    (first, judged), (second, reused) = seen
    (place,) = [item.run_seq for item in event_log.read(stream=first) if item.event == judged]
    assert reused.cached_from == f"{first}@{place}"
    assert reused.evaluation == judged.evaluation
    assert [item.type for item in event_log.read(stream=second)][-2:] == [
        "ProfileRecorded",
        "EvaluationCompleted",
    ]
    assert sum(judge.calls.values()) == 1


async def test_equal_kernels_judged_at_the_same_time_are_judged_once(event_log):
    judge = fakes.FakeEvaluator()
    runner = EffectRunner(event_log, fakes.fake_workers(judge))
    places = []
    for id_ in ("first", "second", "third"):
        run = await start(event_log, id_=id_)
        (initial,) = await next_effects(event_log, run)
        places.append((run, initial.key, await admit(event_log, run, initial)))
    await asyncio.gather(*(runner.perform(*place) for place in places))
    outcomes = [event_log.run_state(run).outcomes[str(key)] for run, key, _ in places]
    assert sum(judge.calls.values()) == 1
    assert sorted(outcome.cached_from is None for outcome in outcomes) == [False, False, True]


async def test_another_seed_shares_a_verdict_but_another_target_does_not(event_log):
    judge = fakes.FakeEvaluator()
    runner = EffectRunner(event_log, fakes.fake_workers(judge))
    for id_, change in [("a", {}), ("b", {"seed": 99}), ("c", {"target": "trn1"})]:
        run = await start(event_log, fakes.CONFIG.model_copy(update=change), id_=id_)
        (initial,) = await next_effects(event_log, run)
        await perform(event_log, run, initial, runner)
    assert sum(judge.calls.values()) == 2


@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_infrastructure_that_fails_is_tried_again(event_log, failures):
    judge = Judge(*[InfrastructureError("worker_died", "it died")] * failures)
    run = await start(event_log)
    (initial,) = await next_effects(event_log, run)
    judged = await perform(
        event_log, run, initial, EffectRunner(event_log, fakes.fake_workers(judge), retry=NO_PAUSE)
    )
    assert isinstance(judged, EvaluationCompleted)


@pytest.mark.parametrize(
    ("failures", "code", "tries"),
    [
        ([InfrastructureError("worker_died", "it died")] * 3, "worker_died", 3),
        ([InfrastructureError("weak_jail", "no", retryable=False)], "weak_jail", 1),
        ([InfrastructureError("worker_died", "x"), InfrastructureError("b", "y", retryable=False)], "b", 2),
        ([ZeroDivisionError("a bug")], "internal", 1),
    ],
)
async def test_infrastructure_that_keeps_failing_is_an_outcome(event_log, failures, code, tries):
    run, later = await later_evaluation(event_log)
    runner = EffectRunner(event_log, fakes.fake_workers(Judge(*failures)), retry=NO_PAUSE)
    failed = await perform(event_log, run, later, runner)
    assert isinstance(failed, EvaluationFailed)
    assert (failed.error.code, failed.tries) == (code, tries)


async def later_evaluation(event_log: EventLog) -> tuple[str, Effect]:
    """Return a run whose first kernel was judged, and the evaluation of another one."""
    run, _ = await in_first_round(event_log)
    (first,) = event_log.read(stream=run, types=["EvaluationStarted"])
    request = EvaluationRequest.model_validate_json(event_log.get_blob(first.event.request))
    source = f"{fakes.KERNEL}# another\nOTHER = 7\n".encode()
    key = EffectKey(1, 0, 0, 0, 0, Role.EVALUATOR)
    later = request.model_copy(update={"candidate": "r1.b0.p0.k0.f0", "source": digest_of(source)})
    return run, Effect(key, later, (source,))


async def test_a_first_evaluation_that_keeps_failing_pauses_the_run_and_is_repeated(event_log):
    judge = Judge(*[InfrastructureError("worker_died", "the worker died while judging")] * 3)
    run = await start(event_log)
    (initial,) = await next_effects(event_log, run)
    runner = EffectRunner(event_log, fakes.fake_workers(judge), retry=NO_PAUSE)
    with pytest.raises(EffectDeferred):
        await perform(event_log, run, initial, runner)
    state = event_log.run_state(run)
    assert (state.status, state.pause_cause) == (RunStatus.PAUSED, PauseCause.MACHINE)
    assert "not judged in 3 tries: worker_died: the worker died while judging" in state.status_reason
    await event_log.append([NewEvent(run, RunResumed(reason="the machine is well again"))])
    await fakes.host_until_ended(event_log, run, workers=fakes.fake_workers(judge))
    assert event_log.run_state(run).stop is StopReason.ROUNDS


async def test_a_first_evaluation_that_cannot_succeed_ends_the_run(event_log):
    refused = InfrastructureError("weak_jail", "no", retryable=False)
    run = await start(event_log)
    await fakes.host_until_ended(event_log, run, workers=fakes.fake_workers(Judge(refused)))
    assert event_log.run_state(run).stop is StopReason.INFRASTRUCTURE


async def test_an_evaluation_past_its_deadline_is_tried_again(event_log):
    class Slow(fakes.FakeEvaluator):
        async def evaluate(self, request, blobs, /):
            await asyncio.Event().wait()

    run, later = await later_evaluation(event_log)
    retry = EvaluationRetryPolicy(tries=2, first_pause=0.0, deadline_seconds=0.01)
    failed = await perform(
        event_log, run, later, EffectRunner(event_log, fakes.fake_workers(Slow()), retry=retry)
    )
    assert (failed.error.code, failed.tries) == ("evaluation_deadline", 2)


def test_pauses_grow_by_the_factor():
    policy = EvaluationRetryPolicy(first_pause=0.5, factor=4)
    assert [policy.pause_seconds(tried) for tried in (1, 2, 3)] == [0.5, 2.0, 8.0]


async def test_a_redelivery_asks_exactly_what_was_logged(event_log):
    """Whatever today's code would ask: the request is read back from the blob of the first start."""
    run, effects = await in_first_round(event_log)
    await admit(event_log, run, effects[0])
    asked: list[PlanRequest] = []

    def answer(request):
        asked.append(request)
        return PlanAnswer(PLAN)

    logged = event_log.run_state(run).open[str(effects[0].key)].request
    await EffectRunner(event_log, workers_with(Faulty(answer))).perform(run, effects[0].key, logged)
    assert asked == [effects[0].request]
