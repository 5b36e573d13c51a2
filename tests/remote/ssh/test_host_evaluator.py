"""Kernels evaluated on a host over a real SSH server get the verdicts that they get here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import seeds
from remote.jail_backends import JailLimits
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from remote.pool import WorkerLimits
from remote.ssh.evaluator import HostEvaluator
from remote.ssh.jobs import JobClient
from state.model import Level, Verdict
from tests.remote.conftest import Bench
from tests.support.sshd import trust_host

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
"""


def body(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines) + "    return out\n"


def kernels(good: str) -> dict[str, tuple[Verdict, str]]:
    """Kernels by name, with the verdict that each deserves."""
    huge = "huge = nl.ndarray((1 << 15, 1 << 15), dtype=nl.float32, buffer=nl.private_hbm)"
    part = "huge[0:256, 0:2048]"
    tile = "nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)"
    idle = f"    for _ in range(64):\n        nisa.memset(dst={tile}, value=0.0)\n    return out"
    turned = "out = nl.ndarray((2048, 256), dtype=x.dtype, buffer=nl.shared_hbm)"
    tail = ("range(n // TILE_N)", "range(n // TILE_N - 1)")
    return {
        "good": (Verdict.CORRECT, good),
        "slow": (Verdict.CORRECT, good.replace("    return out", idle)),
        "wrong by little": (Verdict.INCORRECT, good.replace("scale=-1.0", "scale=-1.001")),
        "not finite": (Verdict.INCORRECT, good.replace("op=nl.exp", "op=nl.log")),
        "wrong shape": (Verdict.INCORRECT, body(turned)),
        "raises": (Verdict.COMPILE_ERROR, body("raise ValueError('no')")),
        "hangs": (Verdict.TIMEOUT, body("while True: pass")),
        "crashes while it runs": (
            Verdict.RUNTIME_ERROR,
            body(huge, f"nisa.dma_copy(dst={part}, src=x)", f"nisa.dma_copy(dst=out, src={part})"),
        ),
        "reaches for the system": (Verdict.LINT_ERROR, "import os\n" + good),
        "reaches past the rules": (Verdict.LINT_ERROR, body("().__class__.__base__.__subclasses__()")),
        "leaves a tail unwritten": (Verdict.COMPILE_ERROR, good.replace(*tail)),
    }


def hostile(escaped: Path) -> list[str]:
    """Kernels that would leave something behind, or start something, were there no walls."""
    return [
        body("import os", "os.fork()", "os._exit(0)"),
        body("import os", f"os.system('touch {escaped}')", "raise SystemExit(3)"),
        body(f"open({str(escaped)!r}, 'w')"),
        body("import socket", "socket.create_connection(('127.0.0.1', 22))"),
    ]


@pytest.fixture
async def judge(home):
    """What is computed here, for both evaluators; no process may be left of it."""
    made = JudgeService(
        home=home,
        slots=1,
        allow_weak_jail=True,
        secret="a secret of tests",
        jail_limits=JailLimits(cpu_s=3, memory_bytes=1 << 30),
        worker_limits=WorkerLimits(memory_bytes=4 << 30, wall_s=600),
    )
    yield made
    await made.aclose()


@pytest.mark.slow
@pytest.mark.needs("sshd", package="openssh-server")
async def test_a_host_gives_the_verdicts_that_are_given_here(sshd, home, judge, monkeypatch, tmp_path):
    silu = Bench(seeds.load_problem("silu"))
    jobs = JobClient(await trust_host(sshd.link(home), home))
    local = LocalEvaluator(judge, target="trn2")
    evaluator = HostEvaluator(jobs, address="a host", judge=judge, target="trn2", allow_weak_jail=True)
    try:
        for name, (verdict, source) in kernels(silu.kernel).items():
            request = silu.request(source, level=Level.ONE_SEED)
            there, here = await asyncio.gather(
                evaluator.evaluate(request, silu.blobs), local.evaluate(request, silu.blobs)
            )
            said, own = there.evaluation, here.evaluation
            assert said.verdict is verdict, (name, said.error)
            assert (said.verdict, said.stage, said.error and said.error.code) == (
                own.verdict,
                own.stage,
                own.error and own.error.code,
            ), name
            assert (said.benchmark, said.identity, said.bottleneck) == (
                own.benchmark,
                own.identity,
                own.bottleneck,
            )
            assert there.artefacts == here.artefacts
            for seed, error in own.rel_l2.items():
                assert said.rel_l2[seed] == pytest.approx(error, rel=1.0)
        # Without the rules' first look, so that the jail there has to hold what the jail here holds.
        monkeypatch.setattr("remote.ssh.evaluator.lint_kernel", lambda *_: None)
        monkeypatch.setattr("remote.local.lint_kernel", lambda *_: None)
        for source in hostile(tmp_path / "escaped"):
            request = silu.request(source, level=Level.SLICES)
            said = (await evaluator.evaluate(request, silu.blobs)).evaluation
            own = (await local.evaluate(request, silu.blobs)).evaluation
            assert said.verdict is not Verdict.CORRECT
            assert (said.verdict, said.stage, said.error.code) == (own.verdict, own.stage, own.error.code)
        assert not (tmp_path / "escaped").exists()
        facts = await evaluator.device_facts()
        assert (facts.device, facts.is_predicted) == ("nki_sim (no Neuron SDK on host)", True)
        assert "on a host" in evaluator.toolchain()
        assert await evaluator.calibrate() > 0
    finally:
        await evaluator.aclose()
        await jobs.aclose()
