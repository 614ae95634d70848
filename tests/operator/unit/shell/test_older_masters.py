"""A master that another one has followed: the operator does not do what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_operator.master_link import OTHER_MASTERS, Downward, MasterLink
from holdfast_operator.plan.master_fence import KnownMaster
from holdfast_wire.identity import Identity
from holdfast_wire.messages import Fence, FinishDecision, PodListDone, ReleaseDecision, SyncResponse
from masters.served import eventually
from masters.woken_master import JOB, WokenMaster
from messages import certificates

FINISH = FinishDecision(decision_id=1, succeeded=True)
RELEASE = ReleaseDecision(decision_id=2, node_ranks=(1,))
NEWEST = KnownMaster(epoch=5, incarnation="a")


class Keeper:
    """The link owner's knowledge of masters."""

    def __init__(self, known: KnownMaster) -> None:
        self.known = known
        self.said: list[Downward | None] = []

    def refusal(self, fence: Fence | None) -> str:
        """As `JobKeeper.refusal`."""
        refusal = self.known.refusal(fence)
        if not refusal:
            self.known = self.known.heard(fence)
        return refusal


def _link(keeper: Keeper, master: WokenMaster, folder: Path) -> MasterLink:
    return MasterLink(
        where=lambda: f"127.0.0.1:{master.port}",
        job_uid=JOB,
        tls=lambda: certificates.issue(folder, Identity(JOB, "operator")),
        first=lambda: [PodListDone()],
        heard=keeper.said.append,
        told=lambda _: None,
        refusal=keeper.refusal,
    )


@pytest.mark.parametrize(
    ("fence", "why"),
    [
        (Fence(epoch=4, incarnation="a"), "its epoch is 4, there is a master of epoch 5"),
        (Fence(epoch=5, incarnation="b"), "another master has its epoch, 5"),
    ],
    ids=["an older epoch", "another incarnation of the epoch"],
)
async def test_the_words_of_another_master_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fence: Fence, why: str
) -> None:
    """Neither the first of them nor what follows it; the stream is hung up, again and again."""
    says = [SyncResponse(fence=fence, message=FINISH), SyncResponse(message=RELEASE)]
    keeper, before = Keeper(NEWEST), OTHER_MASTERS._value.get()
    async with WokenMaster(says).serve(tmp_path) as master:
        link = _link(keeper, master, tmp_path)
        try:
            await eventually(lambda: master.hung_up, lambda count: count >= 2)
        finally:
            await link.close()
    assert [said for said in keeper.said if said is not None] == []
    assert keeper.known == NEWEST
    assert OTHER_MASTERS._value.get() >= before + 2
    assert caplog.text.count(why) == 1


async def test_a_master_that_was_obeyed_is_not_any_more(tmp_path: Path) -> None:
    """On the stream that is open while its successor starts: what it says next is dropped."""
    keeper = Keeper(KnownMaster())
    fence = Fence(epoch=4, incarnation="a")
    async with WokenMaster([SyncResponse(fence=fence, message=RELEASE)]).serve(tmp_path) as master:
        link = _link(keeper, master, tmp_path)
        try:
            await eventually(lambda: keeper.said, bool)
            assert (keeper.said, keeper.known.epoch) == ([RELEASE], 4)
            keeper.known = keeper.known.started(5)
            master.later.put_nowait(SyncResponse(fence=fence, message=FINISH))
            await eventually(lambda: master.hung_up, lambda count: count >= 2)
        finally:
            await link.close()
    assert keeper.said == [RELEASE, None]


@pytest.mark.parametrize(
    "fence",
    [None, Fence(epoch=5, incarnation="a"), Fence(epoch=6, incarnation="b")],
    ids=["none: an older release", "its own", "a newer one"],
)
async def test_the_words_of_the_newest_master_are_heard(
    tmp_path: Path, fence: Fence | None
) -> None:
    """And of one of an older release, whose responses have no fence."""
    keeper = Keeper(NEWEST)
    async with WokenMaster([SyncResponse(fence=fence, message=FINISH)]).serve(tmp_path) as master:
        link = _link(keeper, master, tmp_path)
        try:
            await eventually(lambda: keeper.said, bool)
            assert (keeper.said, master.hung_up) == ([FINISH], 0)
        finally:
            await link.close()
    assert keeper.known == (NEWEST if fence is None else NEWEST.heard(fence))
