"""The operator asks kernels: real sockets that listen, that refuse and that nobody answers at."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from holdfast_operator import sounding
from holdfast_operator.plan.reach import Place
from holdfast_operator.sounding import Sounding, answers_at
from holdfast_wire.messages import PodPhase

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


def _place(node: str, address: str) -> Place:
    return Place(node, address, f"uid-{node}", PodPhase.RUNNING)


async def test_a_kernel_answers_whether_or_not_somebody_listens(deaf: tuple[str, int]) -> None:
    """A refusal shows a node that lives as well as a connection does; silence shows nothing."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await answers_at("127.0.0.1", port)
    server.close()
    await server.wait_closed()
    assert await answers_at("127.0.0.1", port)
    began = time.monotonic()
    assert not await answers_at(*deaf)
    assert time.monotonic() - began >= sounding.ANSWER_S - 0.1


async def test_a_node_is_found_gone_and_found_again(deaf: tuple[str, int]) -> None:
    """It is told once each, and nobody is asked any more once no node is in doubt."""
    found: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    places = [_place("a", deaf[0]), _place("b", "127.0.0.1")]
    doubted = ["a"]
    asks = Sounding("team/t", deaf[1], lambda: places, lambda: doubted, found.put_nowait)
    asks.begin()
    asks.begin()
    assert await asyncio.wait_for(found.get(), WITHIN) == {"a"}
    doubted.clear()
    await asyncio.sleep(2 * sounding.AGAIN_S)
    assert found.empty(), "it stays gone although nobody doubts it any more"
    places[0] = _place("a", "127.0.0.1")
    assert await asyncio.wait_for(found.get(), WITHIN) == frozenset()
    assert asks._task is not None
    await asyncio.wait_for(asks._task, WITHIN)
    doubted.append("a")
    places[0] = _place("a", deaf[0])
    asks.begin()
    assert await asyncio.wait_for(found.get(), WITHIN) == {"a"}
    await asks.close()
