"""Evaluation on a Ray cluster of this machine: the same verdicts, the same jail, typed errors."""

from __future__ import annotations

import asyncio
import builtins
import os
from pathlib import Path

import pytest
import ray

import seeds
from remote.cluster.evaluator import RayEvaluator
from remote.errors import InfrastructureError, NotReadyError
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from state.model import Level, Verdict
from tests.remote.conftest import Bench, descendants

# Ray's own threads and sockets end after its `shutdown`, and warn of what they still hold.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


def jails() -> set[int]:
    """Process ids of jails that the cluster of this process has started, wherever they hang."""
    found = set()
    for pid in descendants():
        try:
            if b"The first code in a jail" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
        except OSError:
            continue
    return found


async def until(condition) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_local_cluster_judges_as_this_machine_does_and_survives_what_goes_wrong(tmp_path):
    silu = Bench(seeds.load_problem("silu"))
    here = LocalEvaluator(JudgeService(home=tmp_path / "home", slots=1, allow_weak_jail=True), target="trn2")
    (tmp_path / "home").mkdir()
    one = RayEvaluator(home=tmp_path / "home", target="trn2", slots=1, allow_weak_jail=True)
    with pytest.raises(NotReadyError):
        one.toolchain()
    try:
        await one.prepare()
        assert "PYTHONBREAKPOINT" not in os.environ  # Ray's debugger in place of a kernel's own
        assert one.toolchain() == here.toolchain()
        assert one.slots == 1
        good = silu.request(level=Level.SLICES)
        away, home = await one.evaluate(good, silu.blobs), await here.evaluate(good, silu.blobs)
        assert away.evaluation == home.evaluation
        assert away.artefacts == home.artefacts
        assert away.where is not None
        assert away.where.host.startswith("ray ")
        wrong = silu.request("import nki\n", level=Level.SLICES)
        assert (await one.evaluate(wrong, silu.blobs)).evaluation.verdict is Verdict.COMPILE_ERROR

        missing = good.model_copy(update={"size": "huge"})
        with pytest.raises(InfrastructureError) as caught:
            await one.evaluate(missing, silu.blobs)
        assert (caught.value.code, caught.value.retryable) == ("unknown_size", False)

        loop = silu.kernel.replace("    m, n = x.shape\n", "    m, n = x.shape\n    while True: pass\n")
        endless = silu.request(loop, level=Level.SLICES)
        cancelled = asyncio.create_task(one.evaluate(endless, silu.blobs))
        await until(jails)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert jails() == set()

        doomed = asyncio.create_task(one.evaluate(endless, silu.blobs))
        await until(jails)
        one._ray.kill(one._actors[0], no_restart=True)
        with pytest.raises(InfrastructureError) as caught:
            await doomed
        assert (caught.value.code, caught.value.retryable) == ("worker_died", True)
        await until(lambda: not jails())
        again = await one.evaluate(good, silu.blobs)
        assert again.evaluation == home.evaluation
    finally:
        await one.aclose()
        await here.aclose()


async def test_a_node_that_does_not_start_is_an_error_of_the_cluster(tmp_path, monkeypatch):
    def late(**_):
        raise Exception("The current node timed out during startup.")  # noqa: TRY002 - what Ray raises

    monkeypatch.setattr(ray, "init", late)
    one = RayEvaluator(home=tmp_path, target="trn2", slots=1)
    with pytest.raises(InfrastructureError, match="on this machine: The current node timed out") as caught:
        await one.prepare()
    assert (caught.value.code, caught.value.retryable) == ("cluster_failed", True)
    await one.aclose()


async def test_without_the_extra_one_error_says_how_to_get_it(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_ray(name, *rest, **more):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    one = RayEvaluator(home=tmp_path, target="trn2")
    with pytest.raises(InfrastructureError, match=r"needs Ray; install it: .* -m pip install 'ray") as caught:
        await one.prepare()
    assert (caught.value.code, caught.value.retryable) == ("no_ray", False)
    await one.aclose()


async def test_a_cluster_that_nobody_serves_is_told_within_seconds(tmp_path):
    one = RayEvaluator(home=tmp_path, target="trn2", address="127.0.0.1:1")
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1 cannot be reached: ") as caught:
        await one.prepare()
    assert caught.value.code == "cluster_unreachable"
    await one.aclose()


def test_the_cluster_s_secret_tells_nothing_of_the_home_s(tmp_path):
    class Ray:
        def remote(self, kind):
            return self

        def options(self, **_):
            return self

    ray = Ray()
    given = []
    ray.remote = lambda one: given.append(one) or ray
    tmp_path.joinpath("judge.secret").write_text("ab" * 32)
    RayEvaluator(home=tmp_path, target="trn2")._start_actor(ray)
    setting = given[-1]
    assert setting.secret != "ab" * 32
    assert len(setting.secret) == 64
