"""An installation's secret: made once, for its owner alone, and seen by nobody else."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError

import seeds
from remote import references
from remote.errors import InfrastructureError
from remote.jail_backends import jail_strength
from remote.judge import tiles
from remote.judge.job import JudgeJob
from remote.references import ReferenceStore
from remote.secret import SECRET_FILE, load_secret

SILU = seeds.load_problem("silu")


def test_it_is_made_once_and_is_its_owners_alone(tmp_path):
    home = tmp_path / "home"
    secret = load_secret(home)
    assert len(bytes.fromhex(secret)) == 32
    assert load_secret(home) == secret
    assert stat.S_IMODE((home / SECRET_FILE).stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == [SECRET_FILE]
    assert load_secret(tmp_path / "another") != secret


def test_whoever_asks_at_the_same_time_gets_the_same(tmp_path):
    with ThreadPoolExecutor(16) as threads:
        found = set(threads.map(lambda _: load_secret(tmp_path), range(64)))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


@pytest.mark.parametrize("content", [b"", b"abcd", b"\xff" * 64, b"not hexadecimal"])
def test_what_is_no_secret_is_not_used(content, tmp_path):
    (tmp_path / SECRET_FILE).write_bytes(content)
    with pytest.raises(InfrastructureError, match="delete it") as caught:
        load_secret(tmp_path)
    assert caught.value.code == "bad_secret"
    assert not caught.value.retryable


def test_it_decides_where_the_tiles_lie_and_nothing_else():
    one, other = (tiles.make_tile_pool(SILU.spec, "full", secret) for secret in ("one", "other"))
    assert one == tiles.make_tile_pool(SILU.spec, "full", "one")
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])
    extents = [[end - first for pair in tiles_ for first, end in pair.box] for tiles_ in (one, other)]
    assert extents[0] == extents[1]


@pytest.mark.slow
async def test_another_secret_has_tiles_of_its_own(tmp_path, monkeypatch):
    asked = []
    run_jailed = references.run_jailed

    async def noted(program, request, **options):
        asked.append(json.loads(request)["secret"])
        return await run_jailed(program, request, **options)

    monkeypatch.setattr(references, "run_jailed", noted)
    stores = [
        ReferenceStore(tmp_path, strength=jail_strength(), secret=text) for text in (None, None, "other")
    ]
    first, again, other = [
        (await store.load_files(SILU, "reduced", tiles=["0"])).tiles["0"] for store in stores
    ]
    assert first == again
    assert first != other
    assert asked == [load_secret(tmp_path), "other"]
    assert stores[0].secret not in str(first)


def test_no_message_shows_it():
    job = JudgeJob(spec=SILU.spec, problem="p", size="full", target="trn2", references={}, secret="hush")
    assert "hush" not in repr(job)
    with pytest.raises(ValidationError) as caught:
        JudgeJob.model_validate_json(json.dumps({"secret": ["hush"], "size": 1}))
    assert "hush" not in str(caught.value)


@pytest.mark.slow
async def test_no_kernel_is_told(evaluator, silu, monkeypatch):
    told = []
    run_jailed = references.run_jailed

    async def noted(program, request, **options):
        told.append(request)
        return await run_jailed(program, request, **options)

    monkeypatch.setattr("remote.judge_service.run_jailed", noted)
    answer = await evaluator.evaluate(silu.request(), silu.blobs)
    assert answer.evaluation.is_correct
    assert told
    secret = evaluator.judge.references.secret
    assert not any(secret.encode() in request for request in told)
    assert secret not in answer.evaluation.model_dump_json()
