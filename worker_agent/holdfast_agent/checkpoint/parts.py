"""Parts of checkpoints between agents: answers to other agents, and reads of their memory.

The slot of a part, its loan, and the hashes are `holdfast.flash.server.peer_parts`'. Imports grpc.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.peer_parts import Described, GatherError, PartPlace, Range
from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_wire import channel, codec
from holdfast_wire.messages import ByteRange, DescribePartRequest, Fence, ReadPartRequest
from holdfast_wire.v1 import peer_pb2, peer_pb2_grpc

CONNECT_SECONDS = 5.0
"""Until another agent accepts a connection, s. A lost packet or a busy moment must not rule its
memory out; the master notices a dead agent within that time."""
DESCRIBE_SECONDS = 600.0
"""Until another agent describes a part, s: it may first have to hash all that it holds, at 10 GB/s.
No node waits longer for a restore plan."""
STALL_SECONDS = 10.0
"""Without a byte during a read, s: then the other node counts as gone."""
PIECE_BYTES = 1024 * 1024
"""Bytes of one message: copying it blocks the event loop of either side for 0.2 ms."""
_PIECE_NUMBERS = PIECE_BYTES // 10
"""Hashes and lengths take up to 10 bytes each."""

_T = TypeVar("_T")


async def describe(arenas: Arenas, request: Any, context: Any) -> AsyncIterator[Any]:
    """Answer DescribePart."""
    found = await arenas.describe(_version(request), request.rank)
    if found is None:
        await context.abort(grpc.StatusCode.NOT_FOUND, _missing(request))
        return
    yield peer_pb2.DescribePartResponse(bytes_room=found.bytes_room)
    for at in range(0, len(found.table), PIECE_BYTES):
        yield peer_pb2.DescribePartResponse(table=found.table[at : at + PIECE_BYTES])
    for at in range(0, len(found.lengths), _PIECE_NUMBERS):
        yield peer_pb2.DescribePartResponse(lengths=found.lengths[at : at + _PIECE_NUMBERS])
    for at in range(0, len(found.hashes), _PIECE_NUMBERS):
        yield peer_pb2.DescribePartResponse(hashes=found.hashes[at : at + _PIECE_NUMBERS])


async def read(arenas: Arenas, request: Any, context: Any) -> AsyncIterator[Any]:
    """Answer ReadPart."""
    loan = await arenas.lend(_version(request), request.rank)
    if loan is None:
        await context.abort(grpc.StatusCode.NOT_FOUND, _missing(request))
        return
    try:
        image = loan.image
        for one in request.ranges:
            end = one.begin + one.length
            if end > len(image):
                text = f"bytes {one.begin} to {end} of {len(image)} of rank {request.rank}"
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, text)
            for at in range(one.begin, end, PIECE_BYTES):
                piece = bytes(image[at : min(at + PIECE_BYTES, end)])
                yield peer_pb2.ReadPartResponse(data=piece)
    finally:
        arenas.take_back(loan)


def _version(request: Any) -> Version:
    return Version(request.version.lineage, request.version.step)


def _missing(request: Any) -> str:
    version = _version(request)
    return (
        f"step {version.step} of round {version.lineage}: no part of rank {request.rank} is in "
        "this agent's memory"
    )


class PartReader:
    """Reads other agents' memory; its methods block, and are for threads beside the event loop.

    See `holdfast.flash.server.peer_parts.Peers`.
    """

    def __init__(self, fence: Callable[[int], Fence], job_uid: str, tls_dir: Path) -> None:
        """`fence` returns the fence for a round. Needs a running event loop."""
        self._fence, self._job_uid, self._tls_dir = fence, job_uid, tls_dir
        self._loop = asyncio.get_running_loop()

    def describe(self, part: PartPlace) -> Described:
        """Return the description of a part; raises `GatherError`."""
        fence = self._fence(part.number)
        request = DescribePartRequest(fence=fence, version=part.version, rank=part.rank)
        return self._wait(part.address, self._describe(part.address, codec.to_proto(request)))

    def read(self, part: PartPlace, ranges: Sequence[Range], into: memoryview) -> None:
        """Read ranges of an image to the same places of `into`; raises `GatherError`."""
        request = ReadPartRequest(
            fence=self._fence(part.number),
            version=part.version,
            rank=part.rank,
            ranges=tuple(ByteRange(begin=begin, length=length) for begin, length in ranges),
        )
        work = self._read(part.address, codec.to_proto(request), ranges, into)
        return self._wait(part.address, work)

    def _wait(self, address: str, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else ""
            words = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise GatherError(f"the agent at {address} answers {code}: {words}") from error
        except TimeoutError as error:
            raise GatherError(f"the agent at {address} does not answer") from error
        except (channel.CredentialsError, OSError) as error:
            raise GatherError(f"the agent at {address}: {error}") from error
        except (RuntimeError, concurrent.futures.CancelledError) as error:
            raise GatherError("this agent ends") from error

    def _open(self, address: str) -> grpc.aio.Channel:
        options = channel.peer_channel_options(self._job_uid)
        return grpc.aio.secure_channel(address, channel.channel_credentials(self._tls_dir), options)

    async def _describe(self, address: str, request: Any) -> Described:
        room, table = 0, bytearray()
        lengths, hashes = list[int](), list[int]()
        async with asyncio.timeout(DESCRIBE_SECONDS), self._open(address) as link:
            stub = await _reached(link)
            async for piece in stub.DescribePart(request):
                room = max(room, piece.bytes_room)
                table += piece.table
                lengths += piece.lengths
                hashes += piece.hashes
        return Described(
            table=bytes(table), bytes_room=room, lengths=tuple(lengths), hashes=tuple(hashes)
        )

    async def _read(
        self, address: str, request: Any, ranges: Sequence[Range], into: memoryview
    ) -> None:
        async with self._open(address) as link:
            stub = await _reached(link)
            pieces = aiter(stub.ReadPart(request))
            for begin, length in ranges:
                at, end = begin, begin + length
                while at < end:
                    async with asyncio.timeout(STALL_SECONDS):
                        piece = await anext(pieces, None)
                    data = b"" if piece is None else piece.data
                    if not data or len(data) > end - at:
                        raise OSError(f"{len(data)} bytes at {at}, up to {end} was asked for")
                    into[at : at + len(data)] = data
                    at += len(data)


async def _reached(link: grpc.aio.Channel) -> Any:
    """Return the stub for the other agent, once the connection stands."""
    async with asyncio.timeout(CONNECT_SECONDS):
        await link.channel_ready()
    return peer_pb2_grpc.PeerServiceStub(link)
