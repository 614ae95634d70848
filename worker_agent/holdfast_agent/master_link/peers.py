"""Calls between agents: answers about the round here, questions while there is no master.

Parts of checkpoints are in `checkpoint.parts`, imported at the first use. Imports grpc.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import AgentError
from holdfast_agent.master_link.session import MasterSession
from holdfast_agent.policies import liveness
from holdfast_agent.workers.page_watch import PageWatch
from holdfast_agent.workers.runner import RoundRunner
from holdfast_wire import channel, codec, keys
from holdfast_wire.messages import GetRoundRequest, GetRoundResponse, PeerAddress
from holdfast_wire.v1 import peer_pb2, peer_pb2_grpc

log = logging.getLogger(__name__)

ASK_DEADLINE_SECONDS = 0.8
"""Seconds for one answer; all peers are asked at once, when the master is lost and each second."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class PeerServer(peer_pb2_grpc.PeerServiceServicer):
    """Answers other agents of the job, on a port of its own."""

    def __init__(self, known: Callable[[], GetRoundResponse], arenas: Arenas) -> None:
        """Listen nowhere yet.

        known: Returns this agent's knowledge of its round and its master.
        arenas: Has the checkpoints in its memory.
        """
        self._known, self._arenas = known, arenas
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str, tls_dir: Path) -> str:
        """Listen, and return the host:port at which others reach it.

        Raises AgentError: the address or the certificates cannot be used.
        """
        host = f"[{address}]" if ":" in address else address
        server = grpc.aio.server(options=channel.SERVER_OPTIONS)
        peer_pb2_grpc.add_PeerServiceServicer_to_server(self, server)
        bind = host if address in LOOPBACK else ("[::]" if ":" in address else "0.0.0.0")  # noqa: S104 - peers reach it by the pod's address, mTLS guards it
        try:
            port = server.add_secure_port(f"{bind}:0", channel.server_credentials(tls_dir))
        except RuntimeError as error:
            raise AgentError(
                f"other agents could not reach this one: {bind}:0 cannot be listened on ({error}); "
                f"have a port free there, or name another address of this machine by --local-addr"
            ) from error
        except channel.CredentialsError as error:
            raise AgentError(f"{keys.ENV_TLS_DIR}={str(tls_dir)!r}: {error}") from error
        await server.start()
        self._server = server
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(None)

    async def GetRound(self, request: Any, context: Any) -> peer_pb2.GetRoundResponse:
        """Return this agent's knowledge of its round."""
        await self._admit(context)
        response: peer_pb2.GetRoundResponse = codec.to_proto(self._known())
        return response

    async def DescribePart(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Describe a part of a checkpoint in memory here."""
        from holdfast_agent.checkpoint import parts

        await self._admit(context, request.fence)
        async for piece in parts.describe(self._arenas, request, context):
            yield piece

    async def ReadPart(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send bytes of a part of a checkpoint in memory here."""
        from holdfast_agent.checkpoint import parts

        await self._admit(context, request.fence)
        async for piece in parts.read(self._arenas, request, context):
            yield piece

    async def _admit(self, context: Any, fence: Any = None) -> None:
        """Refuse clients without an agent's certificate, and questions about an ended round."""
        peer = channel.peer_identity(context.auth_context())
        if peer is None or peer.role != keys.ROLE_AGENT:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "agents only")
        known = self._known().fence
        if fence is not None and known is not None and fence.round < known.round:
            text = f"round {fence.round} is over: this agent has accepted round {known.round}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)


async def ask(
    peers: Sequence[PeerAddress], request: GetRoundRequest, job_uid: str, tls_dir: Path
) -> list[GetRoundResponse]:
    """Return the answers of the peers that answer in time."""
    answers = await asyncio.gather(*(_ask_one(peer, request, job_uid, tls_dir) for peer in peers))
    return [answer for answer in answers if answer is not None]


async def _ask_one(
    peer: PeerAddress, request: GetRoundRequest, job_uid: str, tls_dir: Path
) -> GetRoundResponse | None:
    try:
        options = channel.peer_channel_options(job_uid)
        credentials = channel.channel_credentials(tls_dir)
        async with grpc.aio.secure_channel(peer.address, credentials, options) as link:
            stub: Any = peer_pb2_grpc.PeerServiceStub(link)
            message = await stub.GetRound(codec.to_proto(request), timeout=ASK_DEADLINE_SECONDS)
            answer: GetRoundResponse = codec.from_proto(message)
            return answer
    except (grpc.RpcError, OSError, codec.WireError, channel.CredentialsError) as error:
        code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
        log.info("peer %d at %s did not answer: %s", peer.node_rank, peer.address, code)
        return None


class MasterlessWatch:
    """Watches the workers while there is no master; the rule is `policies.liveness`'."""

    def __init__(
        self, watch: PageWatch, runner: RoundRunner, session: MasterSession, settings: Settings
    ) -> None:
        """Watch `runner`'s workers; `session` tells if there is a master."""
        self._watch, self._runner = watch, runner
        self._session, self._settings = session, settings
        self._since = time.monotonic()

    def begin(self) -> None:
        """Note that the master is lost from now on."""
        self._since = time.monotonic()

    def known(self) -> GetRoundResponse:
        """Return the answer for a peer that has no master."""
        accepted, current = self._session.accepted, self._runner.current
        barrier = current.stop_barrier if current and current.number == accepted.round else None
        connected = self._session.connected
        return GetRoundResponse(fence=accepted, has_master=connected, barrier=barrier)

    async def look(self, limit_seconds: float) -> None:
        """Ask the peers once; end the workers, or arm a barrier that only peers have had yet."""
        session, settings, current = self._session, self._settings, self._runner.current
        members = current.assignment.peers if current is not None else ()
        request = GetRoundRequest(node_rank=settings.node_rank, fence=session.accepted)
        answers = await ask(members, request, settings.job_uid, settings.tls_dir)
        if session.connected:
            return
        killed_for = liveness.why_masterless_end(
            silent_seconds=time.monotonic() - self._since,
            limit_seconds=limit_seconds,
            accepted=session.accepted,
            answers=answers,
        )
        if killed_for:
            self._runner.kill(killed_for)
            return
        barrier = liveness.peers_barrier(session.accepted, answers)
        if barrier is not None and current and barrier.barrier_id > current.armed:
            self._watch.set_barrier(barrier, session.accepted.round)
