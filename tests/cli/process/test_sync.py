"""The runner's stream to its master: whom it obeys."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.job_directory import Endpoint, JobHome
from holdfast_cli.runner.local_job import LocalJob
from holdfast_cli.runner.sync import MasterSync
from holdfast_operator.plan.view import KnownMaster
from holdfast_wire import codec
from holdfast_wire.identity import Identity
from holdfast_wire.messages import Fence, FinishDecision, SyncResponse
from jobs.job_files import job, read
from masters.served import eventually
from masters.woken_master import JOB, WokenMaster
from messages import certificates

FINISH = FinishDecision(decision_id=1, succeeded=True)
NEWEST = KnownMaster(epoch=5, incarnation="a")


@contextlib.asynccontextmanager
async def _runs(
    folder: Path, master: WokenMaster, known: KnownMaster
) -> AsyncIterator[tuple[MasterSync, LocalJob, list[Any]]]:
    """A runner's stream to this master."""
    runner, said = LocalJob(read(job(replicas=2)), JOB), list[Any]()
    runner.master = known
    home = JobHome(folder)
    issued = certificates.issue(folder, Identity(JOB, "operator"))
    home.tls("operator").parent.mkdir(parents=True, exist_ok=True)
    issued.rename(home.tls("operator"))
    sync = MasterSync(home, runner, said.append)
    where = Endpoint("127.0.0.1", master.port, os.getpid(), 1)
    task = asyncio.create_task(sync.run(lambda: where))
    try:
        yield sync, runner, said
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "fence",
    [Fence(epoch=4, incarnation="a"), Fence(epoch=5, incarnation="b")],
    ids=["an older epoch", "another incarnation of the epoch"],
)
async def test_the_words_of_another_master_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fence: Fence
) -> None:
    """Neither the first of them nor what follows; each is counted, hung up on, and logged once."""
    says = [SyncResponse(fence=fence, message=FINISH), SyncResponse(message=FINISH)]
    async with (
        WokenMaster(says).serve(tmp_path) as master,
        _runs(tmp_path, master, NEWEST) as (sync, runner, said),
    ):
        await eventually(lambda: master.hung_up, lambda count: count >= 2)
        assert (said, runner.master) == ([], NEWEST)
        assert sync.dropped >= 2
    assert caplog.text.count("FinishDecision dropped") == 1


@pytest.mark.parametrize(
    "fence",
    [None, Fence(epoch=5, incarnation="a"), Fence(epoch=6, incarnation="b")],
    ids=["none: an older release", "its own", "a newer one"],
)
async def test_the_words_of_the_newest_master_are_heard(
    tmp_path: Path, fence: Fence | None
) -> None:
    """And of one of an older release, whose responses have no fence."""
    async with (
        WokenMaster([SyncResponse(fence=fence, message=FINISH)]).serve(tmp_path) as master,
        _runs(tmp_path, master, NEWEST) as (sync, runner, said),
    ):
        await eventually(lambda: said)
        assert (said, sync.dropped, master.hung_up) == ([FINISH], 0, 0)
        assert runner.master == (NEWEST if fence is None else NEWEST.heard(fence))


async def test_what_only_a_newer_master_says_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number of an enum that this release does not know costs neither the stream nor the job."""
    encode, newer = codec.encode, SyncResponse(fence=Fence(epoch=5, incarnation="a"))
    phase_99 = b"\x0a\x02\x18\x63"
    monkeypatch.setattr(codec, "encode", lambda twin: phase_99 if twin is newer else encode(twin))
    async with (
        WokenMaster([newer, SyncResponse(message=FINISH)]).serve(tmp_path) as master,
        _runs(tmp_path, master, NEWEST) as (sync, _, said),
    ):
        await eventually(lambda: said)
        assert (said, sync.malformed, master.streams) == ([FINISH], 1, 1)
