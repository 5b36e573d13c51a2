"""A replica on a real SSH server: it is written, read in pieces, and gives the log back."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from remote import replica_stores
from remote.errors import InfrastructureError
from remote.replica_stores import open_store
from state.home import HomeLayout
from state.log import EventLog
from state.readonly import ReadOnlyConnection
from state.replica import Replicator, restore_replica
from state.verify import verify_log
from tests.support.scripted_runs import append_run
from tests.support.sshd import trust_host


async def test_a_log_is_copied_to_a_host_and_restored_from_it(sshd, home, tmp_path, monkeypatch) -> None:
    link = await trust_host(sshd.link(home), home)
    monkeypatch.setattr(replica_stores, "PIECE_BYTES", 32 * 65536)
    store = open_store(f"ssh://{link.host.address}{tmp_path}/rep lica", home, config=link.config)
    with EventLog.open(home) as log:
        append_run(log, "run", rounds=2)
        head = log.head
    with closing(ReadOnlyConnection(HomeLayout(home))) as handle:
        assert await asyncio.to_thread(Replicator(store).copy_news, handle.connection()) == 1
    assert len(list((tmp_path / "rep lica").iterdir())) == 1
    done = await asyncio.to_thread(restore_replica, tmp_path / "new", store, f"run@{head.run_seq}")
    assert done.report.events == head.seq + 1
    assert verify_log(tmp_path / "new").is_ok
    with pytest.raises(InfrastructureError) as caught:
        await asyncio.to_thread(store.read, "nothing-there")
    assert caught.value.code == "replica_failed"
