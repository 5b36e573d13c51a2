"""Endpoints: who goes first, who waits, and what a breaker leaves for the next process."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from agent_core.providers.completion import CompletionRequest, PromptPart, ToolDefinition
from agent_core.providers.failures import CallError, Failure, FailureKind
from agent_core.providers.limits import TurnTimeout
from daemon.calls.endpoints import EndpointPool, EndpointUnavailable, PrefixLeaders
from stability.breaker import BreakerPolicy
from state.events import BreakerClosed, BreakerOpened
from state.log import EventLog
from state.model import SYSTEM_STREAM, ErrorInfo
from state.records import NewEvent
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import MODEL, FakeProvider
from tests.support.llm_server import Asked, LlmServer, Refuse, Reply, Said

LONG = "the same long guide " * 400
ONCE = BreakerPolicy(failures=1, pause_seconds=0.001, longest_seconds=0.001, probe_seconds=0.001)


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def request(case: str = "case", guide: str = LONG) -> CompletionRequest:
    return CompletionRequest(
        model="some-model",
        guide=(PromptPart(text=guide, cached=True),),
        case=(PromptPart(text=case),),
        max_output_tokens=10,
    )


def endpoints(event_log: EventLog, provider: FakeProvider, **more) -> EndpointPool:
    return EndpointPool(event_log, fake_models.daemon_config(), env={}, create=lambda *_: provider, **more)


async def ask(found: EndpointPool, asked: CompletionRequest, price) -> str:
    endpoint = found.get("local")
    async with endpoint.wait_for_turn(asked, price, wait_seconds=30):
        return (await endpoint.send_request(asked)).text


async def everybody_else() -> None:
    """Let all others come as far as they get, however slow the machine is."""
    for _ in range(200):
        await asyncio.sleep(0)


async def under_way(event_log, price, requests, script=None) -> list[int]:
    """Ask all at a time; return how many were under way when each was sent."""
    seen: list[int] = []
    provider = FakeProvider()

    def noting(asked, delivery):
        return script(asked, delivery) if script else "an answer"

    async def complete(asked, *, deadline_seconds, observe):
        provider.under_way += 1
        seen.append(provider.under_way)
        try:
            await everybody_else()
            said = noting(asked, len(seen))
            if isinstance(said, Failure):
                raise CallError(said)
            provider.script = lambda *_: said
            return await FakeProvider(script=lambda *_: said).complete(
                asked, deadline_seconds=deadline_seconds, observe=observe
            )
        finally:
            provider.under_way -= 1

    provider.complete = complete
    found = endpoints(event_log, provider)
    await asyncio.gather(*(ask(found, one, price) for one in requests), return_exceptions=True)
    return seen


async def test_the_first_of_a_fan_out_goes_alone_and_the_others_together(event_log):
    price = endpoints(event_log, FakeProvider()).model_price(MODEL)
    assert price is not None
    cases = [request(f"case {number}") for number in range(5)]
    assert sorted(await under_way(event_log, price, cases)) == [1, 1, 2, 3, 4]


async def test_after_a_first_one_that_fails_the_others_go_together(event_log):
    price = endpoints(event_log, FakeProvider()).model_price(MODEL)
    cases = [request(f"case {number}") for number in range(4)]

    def script(asked, number):
        return Failure(kind=FailureKind.SERVER, message="no") if number == 1 else "an answer"

    assert sorted(await under_way(event_log, price, cases, script)) == [1, 1, 2, 3]


async def test_who_comes_after_one_that_failed_is_a_first_one_again():
    leaders, inside = PrefixLeaders(), []

    async def go(name: str) -> None:
        async with leaders.wait_for_leader("a", wait_seconds=60):
            inside.append(name)
            await asyncio.sleep(0)
            inside.append(name)

    with pytest.raises(LookupError):
        async with leaders.wait_for_leader("a", wait_seconds=60):
            raise LookupError
    await asyncio.gather(go("x"), go("y"), go("z"))
    assert inside[:2] == ["x", "x"]
    assert set(inside[2:4]) == {"y", "z"}


async def test_nobody_waits_behind_another_beyond_its_patience(event_log):
    """The first one hangs for as long as the test lasts."""
    found = endpoints(event_log, FakeProvider())
    price, endpoint = found.model_price(MODEL), found.get("local")
    async with endpoint.wait_for_turn(request(), price, wait_seconds=60):
        for seconds in (0.0, 0.001):
            with pytest.raises(TurnTimeout):
                async with endpoint.wait_for_turn(request("another"), price, wait_seconds=seconds):
                    pass


async def test_what_is_left_of_a_patience_is_all_that_follows_behind_a_first_one(event_log, monkeypatch):
    """Of ten seconds six are gone behind the first one, so four are left for the limits."""
    found = endpoints(event_log, FakeProvider())
    price, endpoint = found.model_price(MODEL), found.get("local")
    now, given = [100.0], []
    monkeypatch.setattr("daemon.calls.endpoints.time", SimpleNamespace(monotonic=lambda: now[0]))
    turn = endpoint.limiter.take_turn

    def noting(tokens, *, wait_seconds):
        given.append(wait_seconds)
        return turn(tokens, wait_seconds=wait_seconds)

    monkeypatch.setattr(endpoint.limiter, "take_turn", noting)

    async def follow() -> None:
        async with endpoint.wait_for_turn(request("another"), price, wait_seconds=10.0):
            pass

    async with endpoint.wait_for_turn(request(), price, wait_seconds=10.0):
        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        now[0] += 6.0
    await following
    assert given == [10.0, 4.0]


@pytest.mark.parametrize("why", ["no price is known", "caches are not cheaper", "little is shared"])
async def test_nobody_waits_where_nothing_is_saved(event_log, why):
    price = endpoints(event_log, FakeProvider()).model_price(MODEL)
    flat = price.model_copy(
        update={"rates": tuple(rates.model_copy(update={"cached": rates.input}) for rates in price.rates)}
    )
    chosen = {"no price is known": None, "caches are not cheaper": flat, "little is shared": price}[why]
    guide = "short" if why == "little is shared" else LONG
    cases = [request(f"case {number}", guide) for number in range(4)]
    assert sorted(await under_way(event_log, chosen, cases)) == [1, 2, 3, 4]


async def test_what_is_warm_goes_cold_again():
    now = [0.0]
    leaders = PrefixLeaders(clock=lambda: now[0])
    async with leaders.wait_for_leader("a", wait_seconds=60):
        pass
    inside: list[str] = []

    async def go(name: str) -> None:
        async with leaders.wait_for_leader("a", wait_seconds=60):
            inside.append(name)
            await everybody_else()
            inside.append(name)

    await asyncio.gather(go("x"), go("y"))
    assert inside[:2] == ["x", "y"]
    now[0] = 1000.0
    inside.clear()
    await asyncio.gather(go("x"), go("y"))
    assert inside[0] == inside[1]


async def test_a_breaker_is_kept_in_the_log_and_a_new_process_probes(event_log):
    def script(asked, delivery):
        return Failure(kind=FailureKind.SERVER, message="down") if delivery == 1 else "an answer"

    provider = FakeProvider(script=script)
    found = endpoints(event_log, provider, policy=BreakerPolicy(failures=1, pause_seconds=600))
    with pytest.raises(CallError):
        await ask(found, request(), None)
    assert event_log.system_state().breakers == {"local": "down"}
    endpoint = found.get("local")
    with pytest.raises(EndpointUnavailable):
        async with endpoint.wait_for_turn(request(), None, wait_seconds=0.01):
            pass
    again = endpoints(event_log, provider, policy=BreakerPolicy(failures=1, pause_seconds=600))
    assert await ask(again, request(), None) == "an answer"
    assert event_log.system_state().breakers == {}
    kinds = [item.type for item in event_log.read(stream=SYSTEM_STREAM)]
    assert kinds == [BreakerOpened.__name__, BreakerClosed.__name__]


async def test_who_waits_behind_those_at_an_open_breaker_is_told_of_the_breaker(event_log):
    """One is let in by the limits and waits there for the endpoint; the next one waits for the first."""
    provider = FakeProvider(script=lambda *_: Failure(kind=FailureKind.SERVER, message="down"))
    config = fake_models.daemon_config(local={"calls": 1})
    policy = BreakerPolicy(failures=1, pause_seconds=600)
    found = EndpointPool(event_log, config, env={}, create=lambda *_: provider, policy=policy)
    with pytest.raises(CallError):
        await ask(found, request(), None)

    async def waits(seconds: float) -> None:
        async with found.get("local").wait_for_turn(request(), None, wait_seconds=seconds):
            pass

    first = asyncio.create_task(waits(100_000.0))
    while found.get("local").limiter.gate.inside == 0:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)
    with pytest.raises(EndpointUnavailable):
        await waits(0.01)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first


async def test_a_probe_that_sends_nothing_makes_room_for_another(event_log):
    """As when the run has no budget for it, or was paused while it waited."""
    error = ErrorInfo(code="server", message="down")
    await event_log.append([NewEvent(SYSTEM_STREAM, BreakerOpened(name="local", error=error))])
    provider = FakeProvider(script=lambda *_: "an answer")
    found = endpoints(event_log, provider, policy=BreakerPolicy(probe_seconds=600))
    for _ in range(2):
        with pytest.raises(LookupError):
            async with found.get("local").wait_for_turn(request(), None, wait_seconds=0.01):
                raise LookupError
    async with found.get("local").wait_for_turn(request(), None, wait_seconds=0.01):
        pass
    assert provider.asked == []
    assert event_log.system_state().breakers == {"local": "down"}
    assert await ask(found, request(), None) == "an answer"
    assert event_log.system_state().breakers == {}


async def test_who_sends_nothing_withdraws_no_probe_but_its_own(event_log):
    def script(asked, delivery):
        return Failure(kind=FailureKind.SERVER, message="down")

    policy = BreakerPolicy(failures=1, pause_seconds=0.001, longest_seconds=0.001, probe_seconds=600)
    found = endpoints(event_log, FakeProvider(script=script), policy=policy)
    endpoint = found.get("local")
    async with contextlib.AsyncExitStack() as probing:
        async with endpoint.wait_for_turn(request(), None, wait_seconds=30):  # while it is closed
            with pytest.raises(CallError):
                await ask(found, request(), None)
            await probing.enter_async_context(endpoint.wait_for_turn(request(), None, wait_seconds=30))
        with pytest.raises(TurnTimeout):
            async with endpoint.wait_for_turn(request(), None, wait_seconds=0.01):
                pass


async def test_a_probe_that_failed_is_not_withdrawn(event_log):
    error = ErrorInfo(code="server", message="down")
    await event_log.append([NewEvent(SYSTEM_STREAM, BreakerOpened(name="local", error=error))])
    provider = FakeProvider(script=lambda *_: Failure(kind=FailureKind.SERVER, message="down"))
    found = endpoints(event_log, provider, policy=BreakerPolicy(pause_seconds=600))
    with pytest.raises(CallError):
        await ask(found, request(), None)
    with pytest.raises(TurnTimeout):
        async with found.get("local").wait_for_turn(request(), None, wait_seconds=0.01):
            pass


async def test_failures_of_the_question_are_none_of_the_endpoint(event_log):
    def script(asked, delivery):
        return Failure(kind=FailureKind.INVALID, message="no") if delivery < 5 else "an answer"

    found = endpoints(event_log, FakeProvider(script=script), policy=ONCE)
    for _ in range(4):
        with pytest.raises(CallError):
            await ask(found, request(), None)
    assert await ask(found, request(), None) == "an answer"
    assert event_log.system_state().breakers == {}


async def test_a_key_that_cannot_be_had_is_a_failure_like_a_wrong_one(event_log, tmp_path):
    config = fake_models.daemon_config(local={"key_file": str(tmp_path / "nothing")})
    found = EndpointPool(event_log, config, env={}, create=lambda *_: FakeProvider())
    with pytest.raises(CallError) as caught:
        await ask(found, request(), None)
    assert caught.value.failure.kind is FailureKind.AUTH


@pytest.mark.parametrize("kind", [FailureKind.AUTH, FailureKind.SPEND_LIMIT])
async def test_a_key_that_was_mended_is_used_by_the_next_question(event_log, tmp_path, kind):
    """Of the same process: nothing but the file has changed, and a run that waited is let go on."""
    file = tmp_path / "key"
    file.touch(mode=0o600)
    made: list[FakeProvider] = []

    def create(name, settings):
        refused = settings.key.reveal() == "the-old-one"
        said = Failure(kind=kind, message="no") if refused else "an answer"
        made.append(FakeProvider(script=lambda *_: said))
        return made[-1]

    config = fake_models.daemon_config(local={"key_file": str(file)})
    found = EndpointPool(event_log, config, env={}, create=create)
    file.write_text("the-old-one")
    for _ in range(2):
        with pytest.raises(CallError):
            await ask(found, request(), None)
    assert len(made) == 1  # the key is as it was, so is its provider
    file.write_text("the-new-one")
    assert await ask(found, request(), None) == "an answer"
    assert await ask(found, request(), None) == "an answer"
    assert [len(one.asked) for one in made] == [2, 2]
    assert not made[0].closed
    await found.aclose()
    assert all(one.closed for one in made)


async def test_a_key_is_not_looked_for_again_while_it_is_good(event_log, tmp_path):
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text("the-one")
    provider = FakeProvider(script=lambda *_: "an answer")
    config = fake_models.daemon_config(local={"key_file": str(file)})
    found = EndpointPool(event_log, config, env={}, create=lambda *_: provider)
    await ask(found, request(), None)
    file.unlink()
    assert await ask(found, request(), None) == "an answer"


async def test_other_settings_make_an_endpoint_anew(event_log):
    provider = FakeProvider(script=lambda *_: "an answer")
    found = endpoints(event_log, provider)
    before = found.get("local")
    await ask(found, request(), None)
    found.apply_config(fake_models.daemon_config(evaluations=1))
    assert found.get("local") is before
    found.apply_config(fake_models.daemon_config(local={"calls": 3}))
    assert found.get("local") is not before
    assert not provider.closed
    await found.aclose()
    assert provider.closed


def test_prices_and_windows_of_one_s_own_come_first(event_log):
    config = fake_models.daemon_config(windows=(f"{MODEL}=4096/512",))
    found = EndpointPool(event_log, config, env={})
    assert found.model_price(MODEL).rates[0].input == 3.0
    assert found.model_price("local/another") is None
    assert (found.model_window(MODEL).context, found.model_window(MODEL).output) == (4096, 512)
    assert found.model_window("anthropic/claude-sonnet-4-5").context >= 200_000


async def test_an_open_breaker_of_another_life_is_half_open_here(event_log):
    error = ErrorInfo(code="server", message="down")
    await event_log.append([NewEvent(SYSTEM_STREAM, BreakerOpened(name="local", error=error))])
    found = endpoints(event_log, FakeProvider(script=lambda *_: "an answer"))
    assert await ask(found, request(), None) == "an answer"


@pytest.mark.parametrize("again", ["the same place", "another address", "a month later"])
async def test_what_was_learnt_of_a_model_is_known_to_the_next_process(event_log, monkeypatch, again):
    def script(asked: Asked) -> Said:
        if "tools" in asked.body:
            return Refuse(400, "invalid_request_error", "tools: this model does not support tools")
        return Reply()

    tool = ToolDefinition(name="check", description="Check.", parameters={"type": "object", "properties": {}})
    asked = request().model_copy(update={"tools": (tool,)})
    with LlmServer(script) as server:
        moved = server.openai.replace("127.0.0.1", "localhost")
        for address in (server.openai, moved if again == "another address" else server.openai):
            config = fake_models.daemon_config(local={"base_url": address})
            pool = EndpointPool(event_log, config, env={})
            await ask(pool, asked, None)
            await ask(pool, asked, None)
            await pool.aclose()
            if again == "a month later":
                monkeypatch.setattr("daemon.calls.endpoints.TRAIT_DAYS", -1)
    known = event_log.system_state().traits[MODEL]
    assert known.traits.refused == ("tools",)
    refused = ["tools" in one.body for one in server.asked]
    assert refused == [True, False, False, *([] if again == "the same place" else [True]), False, False]


async def test_a_named_endpoint_is_asked_by_its_service(event_log):
    with LlmServer(lambda _: Reply(text="mine")) as server:
        named = {"mine": {"service": "anthropic", "base_url": server.anthropic}}
        pool = EndpointPool(
            event_log, fake_models.daemon_config(endpoints=named), env={"MINE_API_KEY": "word-of-mine"}
        )
        endpoint = pool.get("mine")
        async with endpoint.wait_for_turn(request(), None, wait_seconds=30):
            answer = await endpoint.send_request(request())
        await pool.aclose()
    assert answer.text == "mine"
    assert server.asked[0].headers["authorization"] == "Bearer word-of-mine"
