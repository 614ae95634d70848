"""A stream that is read beside: in order, to its end or its error, and let go at once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from holdfast_cli.listening import Listening

Listen = Callable[[str], Listening]


def _answer(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Count: to three, until it is refused, or for ever."""
    numbers = itertools.count() if request == b"ever" else range(3)
    for number in numbers:
        yield str(number).encode()
    if request == b"refused":
        context.abort(grpc.StatusCode.NOT_FOUND, "no more")


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Begin a stream of a real server."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        method: Any = grpc.unary_stream_rpc_method_handler(_answer)
        handlers = grpc.method_handlers_generic_handler("numbers", {"Count": method})
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            count: Any = channel.unary_stream("/numbers/Count")
            yield lambda what: Listening(count(what.encode()))
        server.stop(None).wait(10)


def test_messages_come_in_order_to_the_end(listen: Listen) -> None:
    """And then the loop is over."""
    stream = listen("three")
    assert list(stream) == [b"0", b"1", b"2"]
    stream.close()


def test_an_error_comes_after_what_was_said_before_it(listen: Listen) -> None:
    """As gRPC's own, with its code."""
    stream = listen("refused")
    numbers = iter(stream)
    assert [next(numbers) for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(grpc.RpcError, match="no more") as caught:
        next(numbers)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    stream.close()


def test_who_reads_no_further_lets_go_at_once(listen: Listen) -> None:
    """Also where more is there than is kept: neither a thread nor a call stays."""
    stream = listen("ever")
    assert [message for message, _ in zip(stream, range(3), strict=False)] == [b"0", b"1", b"2"]
    begin = time.monotonic()
    stream.close()
    assert time.monotonic() < begin + 5
    assert "listening" not in {thread.name for thread in threading.enumerate()}
