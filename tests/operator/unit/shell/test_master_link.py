"""The streams to a job's master, as the operator hears them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_operator.master_link import LINK_ERRORS, OTHER_MASTERS, Downward, MasterLink, Upward
from holdfast_operator.plan.view import KnownMaster
from holdfast_operator.state.link import Link
from holdfast_wire import channel, codec
from holdfast_wire.identity import Identity
from holdfast_wire.messages import (
    Fence,
    FinishDecision,
    JobEvent,
    PodListDone,
    PodObservation,
    ReleaseDecision,
    SyncRequest,
    SyncResponse,
    WatchJobResponse,
)
from masters.served import eventually
from masters.woken_master import WokenMaster
from messages import certificates

JOB = "j1"
Handlers = dict[str, "grpc.RpcMethodHandler[bytes, bytes]"]
RELEASE = ReleaseDecision(decision_id=1, node_ranks=(2,))
EVENT = JobEvent(reason="WorldTraining")
ANOTHER_MESSAGE = b"\xba\x06\x00"
ANOTHER_PHASE = b"\x0a\x02\x18\x63"
"""A JobStatus whose phase is 99."""


TOLD: list[bytes] = []
"""What the master was told."""
FINISH = FinishDecision(decision_id=1, succeeded=True)
NEWEST = KnownMaster(epoch=5, incarnation="a")


async def _sync(_requests: object, context: Any) -> AsyncIterator[bytes]:
    TOLD.append(await context.read())
    for data in (ANOTHER_MESSAGE, ANOTHER_PHASE, codec.encode(SyncResponse(message=RELEASE))):
        yield data
    await asyncio.Event().wait()


async def _watch(_request: bytes, _context: object) -> AsyncIterator[bytes]:
    for data in (ANOTHER_MESSAGE, ANOTHER_PHASE, codec.encode(WatchJobResponse(message=EVENT))):
        yield data
    await asyncio.Event().wait()


def _newer_master() -> grpc.aio.Server:
    server = grpc.aio.server()
    sync: Handlers = {"Sync": grpc.stream_stream_rpc_method_handler(_sync)}
    watch: Handlers = {"WatchJob": grpc.unary_stream_rpc_method_handler(_watch)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("holdfast.v1.OperatorService", sync),
            grpc.method_handlers_generic_handler("holdfast.v1.JobService", watch),
        )
    )
    return server


@contextlib.asynccontextmanager
async def _link(
    port: int,
    folder: Path,
    heard: Callable[[Downward | None], None],
    told: Callable[[Sequence[JobEvent]], None] = lambda _: None,
    first: Callable[[], Iterable[Upward]] = lambda: [PodListDone()],
    refusal: Callable[[Fence | None], str] = lambda _: "",
    where: Callable[[], str] | None = None,
) -> AsyncIterator[MasterLink]:
    """A link to a master on a port."""
    link = MasterLink(
        where=where or (lambda: f"127.0.0.1:{port}"),
        options=lambda limit: channel.operator_channel_options(JOB, limit),
        tls=lambda: certificates.issue(folder, Identity(JOB, "operator")),
        first=first,
        heard=heard,
        told=told,
        refusal=refusal,
    )
    try:
        yield link
    finally:
        await link.close()


@contextlib.asynccontextmanager
async def _linked(
    folder: Path,
    heard: Callable[[Downward | None], None],
    told: Callable[[Sequence[JobEvent]], None] = lambda _: None,
    first: Callable[[], Iterable[Upward]] = lambda: [PodListDone()],
) -> AsyncIterator[MasterLink]:
    """A link to a master of the next release."""
    TOLD.clear()
    server = _newer_master()
    tls = certificates.issue(folder, Identity(JOB, "master"))
    port = server.add_secure_port("127.0.0.1:0", channel.server_credentials(tls))
    await server.start()
    try:
        async with _link(port, folder, heard, told, first) as link:
            yield link
    finally:
        await server.stop(0)


async def test_what_only_a_newer_master_says_is_passed_over(tmp_path: Path) -> None:
    """Its decisions and events are still heard: the stream is not given up."""
    said: list[Downward | None] = []
    events: list[JobEvent] = []
    async with _linked(tmp_path, said.append, events.extend):
        await eventually(lambda: (said, events), all)
        assert said == [RELEASE]
        assert events == [EVENT]


async def test_a_fault_of_our_own_does_not_silence_the_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and counted, and the next stream is heard."""
    said: list[Downward | None] = []

    def heard(word: Downward | None) -> None:
        said.append(word)
        if len(said) == 1:
            raise RuntimeError("a mistake")

    before = LINK_ERRORS._value.get()
    async with _linked(tmp_path, heard):
        await eventually(lambda: said.count(RELEASE), lambda count: count > 1)
    assert LINK_ERRORS._value.get() == before + 1
    assert "a mistake" in caplog.text


async def test_what_cannot_be_said_to_a_master_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A label that somebody edited gives a rank which the wire does not take; the rest is said."""
    said: list[Downward | None] = []
    unsayable = PodObservation(node_rank=5_000_000_000, pod_uid="p", name="t-worker-1-0")
    before = LINK_ERRORS._value.get()
    async with _linked(tmp_path, said.append, first=lambda: [unsayable, PodListDone()]):
        await eventually(lambda: said, bool)
    assert said == [RELEASE]
    assert codec.decode(SyncRequest, TOLD[0]).message == PodListDone()
    assert LINK_ERRORS._value.get() == before + 1
    assert "PodObservation cannot be encoded" in caplog.text


async def test_a_stream_that_could_not_begin_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is cancelled by gRPC, which must not be taken for the end of the link."""
    said: list[Downward | None] = []
    tries: list[int] = []

    def first() -> Iterable[Upward]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RuntimeError("a mistake")
        return [PodListDone()]

    before = LINK_ERRORS._value.get()
    async with _linked(tmp_path, said.append, first=first):
        await eventually(lambda: said, bool)
    assert said == [RELEASE]
    assert LINK_ERRORS._value.get() == before + 1
    assert "a mistake" in caplog.text


async def test_a_link_ends_when_it_is_closed(tmp_path: Path) -> None:
    """Its own cancellation is no fault of the stream."""
    said: list[Downward | None] = []
    async with _linked(tmp_path, said.append) as link:
        await eventually(lambda: said, bool)
        await asyncio.wait_for(link.close(), 5.0)
        assert link._task.cancelled()


@contextlib.asynccontextmanager
async def _obeying(
    known: KnownMaster, folder: Path, *says: SyncResponse
) -> AsyncIterator[tuple[WokenMaster, Link, list[Downward | None]]]:
    """A master that says this, what its job knows of masters, and what is heard of it."""
    owner, said = Link(known=known), list[Downward | None]()
    async with (
        WokenMaster(list(says)).serve(folder) as master,
        _link(master.port, folder, said.append, refusal=owner.refusal),
    ):
        yield master, owner, said


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
    before = OTHER_MASTERS._value.get()
    async with _obeying(NEWEST, tmp_path, *says) as (master, owner, said):
        await eventually(lambda: master.hung_up, lambda count: count >= 2)
    assert [one for one in said if one is not None] == []
    assert owner.known == NEWEST
    assert OTHER_MASTERS._value.get() >= before + 2
    assert caplog.text.count(why) == 1


async def test_a_master_that_was_obeyed_is_not_any_more(tmp_path: Path) -> None:
    """On the stream that is open while its successor starts: what it says next is dropped."""
    fence = Fence(epoch=4, incarnation="a")
    says = SyncResponse(fence=fence, message=RELEASE)
    async with _obeying(KnownMaster(), tmp_path, says) as (master, owner, said):
        await eventually(lambda: said, bool)
        assert (said, owner.known.epoch) == ([RELEASE], 4)
        owner.started(5)
        master.later.put_nowait(SyncResponse(fence=fence, message=FINISH))
        await eventually(lambda: master.hung_up, lambda count: count >= 2)
    assert said == [RELEASE, None]


@pytest.mark.parametrize(
    "fence",
    [None, Fence(epoch=5, incarnation="a"), Fence(epoch=6, incarnation="b")],
    ids=["none: an older release", "its own", "a newer one"],
)
async def test_the_words_of_the_newest_master_are_heard(
    tmp_path: Path, fence: Fence | None
) -> None:
    """And of one of an older release, whose responses have no fence."""
    says = SyncResponse(fence=fence, message=FINISH)
    async with _obeying(NEWEST, tmp_path, says) as (master, owner, said):
        await eventually(lambda: said, bool)
        assert (said, master.hung_up) == ([FINISH], 0)
    assert owner.known == (NEWEST if fence is None else NEWEST.heard(fence))


async def test_a_link_without_an_address_waits_for_the_masters_pod(tmp_path: Path) -> None:
    """It does not look each second, as thousands of queued jobs would; a hint ends its wait."""
    asked: list[str] = []
    said: list[Downward | None] = []
    async with WokenMaster([SyncResponse(message=RELEASE)]).serve(tmp_path) as master:
        at = ""

        def where() -> str:
            asked.append(at)
            return at

        async with _link(master.port, tmp_path, said.append, where=where) as link:
            await eventually(lambda: asked, bool)
            await asyncio.sleep(1.5)
            assert asked == [""]
            at = f"127.0.0.1:{master.port}"
            link.hurry()
            await eventually(lambda: said, bool)
    assert said[0] == RELEASE


@pytest.mark.parametrize(("channels", "ping_ms"), [(1, 1_000), (400, 1_000), (2_000, 5_000)])
def test_all_links_of_an_operator_send_a_bounded_number_of_pings(
    channels: int, ping_ms: int
) -> None:
    """One a second each up to 400 links; with more of them 400 a second in all."""
    options = dict(channel.operator_channel_options(JOB, channels=channels))
    assert options["grpc.keepalive_time_ms"] == ping_ms
