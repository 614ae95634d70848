"""The operator probe kernels: real sockets that listen, that refuse and that nobody answers at."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from holdfast_operator.nodes.probe import (
    AGAIN_SECONDS,
    ANSWER_SECONDS,
    FREE_PORT,
    NodeProbe,
    answers_at,
)
from holdfast_operator.nodes.reachability import NodeReachability
from holdfast_operator.pods.record import PodRecord
from jobs.pod_objects import placed
from masters.served import eventually

WITHIN = 10.0


@pytest.fixture
def deaf() -> Iterator[tuple[str, int]]:
    """An address whose queue of connections is full: its kernel drops every further attempt."""
    server = socket.socket()
    server.bind(("127.0.0.2", 0))
    server.listen(0)
    port = server.getsockname()[1]
    fillers = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.2", port))
        fillers.append(one)
    time.sleep(0.1)
    yield "127.0.0.2", port
    for one in (*fillers, server):
        one.close()


def _pod(node: str, address: str, role: str = "worker") -> PodRecord:
    return placed(node, address, f"uid-{node}", role)


async def test_a_kernel_answers_whether_or_not_somebody_listens(deaf: tuple[str, int]) -> None:
    """A refusal shows a node that lives as well as a connection does; silence shows nothing."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await answers_at("127.0.0.1", [port]) is True
    server.close()
    await server.wait_closed()
    assert await answers_at("127.0.0.1", [port]) is True
    began = time.monotonic()
    assert await answers_at(deaf[0], [deaf[1]]) is False
    assert time.monotonic() - began >= ANSWER_SECONDS - 0.1
    assert await answers_at(deaf[0], [deaf[1], FREE_PORT]) is True


async def test_what_this_side_cannot_do_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of descriptors, and an address that no route leads to: nobody was asked."""
    assert await answers_at("300.0.0.1", [9]) is None
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        assert await answers_at("127.0.0.1", [9]) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_node_is_found_gone_and_found_again(
    deaf: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once each; a node stays gone though nobody doubts it, until it answers."""
    monkeypatch.setattr("holdfast_operator.nodes.probe.FREE_PORT", deaf[1])
    found: asyncio.Queue[NodeReachability] = asyncio.Queue()
    pods = [_pod("a", "127.0.0.1"), _pod("b", "127.0.0.1")]
    doubted: list[str] = []
    probe = NodeProbe("team/t", deaf[1], "", lambda: pods, lambda: doubted, found.put_nowait)
    probe.start()
    await eventually(lambda: probe.reach.answered, lambda known: len(known) == 2)
    pods[0] = _pod("a", deaf[0])
    doubted.append("a")
    probe.probe_now()
    assert (await asyncio.wait_for(found.get(), WITHIN)).unreachable == {"a"}
    doubted.clear()
    await asyncio.sleep(2 * AGAIN_SECONDS + ANSWER_SECONDS)
    assert found.empty(), "it stays gone although nobody doubts it any more"
    pods[0] = _pod("a", "127.0.0.1")
    assert (await asyncio.wait_for(found.get(), WITHIN)).unreachable == frozenset()
    await probe.close()


async def test_a_worker_that_answered_is_not_asked_for_each_of_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of pods lose their readiness and get it again; a new or a gone pod is news."""
    monkeypatch.setattr("holdfast_operator.nodes.probe.LEARN_SECONDS", WITHIN)
    looks: list[int] = []
    pods = [_pod("a", "127.0.0.1")]

    def shown() -> list[PodRecord]:
        looks.append(len(pods))
        return pods

    probe = NodeProbe("team/t", FREE_PORT, "", shown, list, lambda _: None)
    probe.start()
    await eventually(lambda: probe.reach.answered, lambda known: len(known) == 1)
    before = len(looks)
    probe.changed(pods[0], gone=False)
    await asyncio.sleep(0.1)
    assert len(looks) == before
    pods.append(_pod("b", "127.0.0.1"))
    probe.changed(pods[1], gone=False)
    await eventually(lambda: probe.reach.answered, lambda known: len(known) == 2)
    before = len(looks)
    probe.changed(pods.pop(), gone=True)
    await eventually(lambda: len(looks), lambda count: count > before)
    await probe.close()


async def test_a_master_is_known_by_its_stream() -> None:
    """A connection that says nothing would count there as one without an identity."""
    accepted: list[object] = []
    server = await asyncio.start_server(lambda *one: accepted.append(one), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    master = _pod("a", "127.0.0.1", "master")
    pods = [master, _pod("b", "127.0.0.2")]
    probe = NodeProbe("team/t", port, "", lambda: pods, list, lambda _: None)
    probe.met(master.uid)
    probe.start()
    await eventually(lambda: probe.reach.answered, lambda known: len(known) == 2)
    assert accepted == []
    await probe.close()
    server.close()
