"""Stub of all job masters: one process, one gRPC server for each job at its pod's own address.

Each has the certificate that the operator would issue for its job. It answers as a master whose job
trains: a status after the list of pods, and no news after that, or a new step now and then.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc

from cluster.kubelet.client import Client
from holdfast_operator.pods.names import Owner
from holdfast_operator.root_key import ROOT_SECRET
from holdfast_wire import channel, codec, keys
from holdfast_wire import messages as wire
from holdfast_wire.authority import JobAuthority
from holdfast_wire.identity import Identity

Pod = Mapping[str, Any]
_LIFETIME: Final = dt.timedelta(days=1)


class Masters:
    """All masters of a cluster."""

    def __init__(self, client: Client, port: int) -> None:
        """Serve none yet; `port`: of all of them, each at an address of its own."""
        self._client = client
        self._port = port
        self._root_key = b""
        self._servers: list[grpc.aio.Server] = []
        self.serves = True
        """True: each job has a master."""
        self.streams = 0
        """Streams that are open."""
        self.step_seconds = 0.0
        """Time between two steps that a master reports, if its operator wants them so often; 0: its
        job stands still."""

    async def begins(self, pod: Pod, address: str) -> None:
        """Serve a master's pod at its address; other pods have nobody who listens."""
        metadata = pod["metadata"]
        if metadata["labels"][keys.LABEL_ROLE] != keys.ROLE_MASTER:
            return
        name, namespace = metadata["labels"][keys.LABEL_JOB], metadata["namespace"]
        owner = Owner(name=name, namespace=namespace, uid=metadata["ownerReferences"][0]["uid"])
        credentials = await asyncio.to_thread(_credentials, await self._root(namespace), owner)
        server = grpc.aio.server(options=channel.MASTER_SERVER_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers(owner))
        server.add_secure_port(f"{address}:{self._port}", credentials)
        await server.start()
        self._servers.append(server)

    async def _root(self, namespace: str) -> bytes:
        if not self._root_key:
            path = f"/api/v1/namespaces/{namespace}/secrets/{ROOT_SECRET}"
            found = await self._client.call("GET", path)
            self._root_key = base64.b64decode(found["data"]["root-key"])
        return self._root_key

    async def stop(self) -> None:
        """End all of them."""
        await asyncio.gather(*(server.stop(None) for server in self._servers))

    def _handlers(self, owner: Owner) -> tuple[grpc.GenericRpcHandler, ...]:
        async def sync(_requests: object, context: Any) -> AsyncIterator[bytes]:
            async for one in self._sync(owner, context):
                yield one

        made: list[grpc.GenericRpcHandler] = []
        stream: Any = grpc.stream_stream_rpc_method_handler(sync)
        made.append(
            grpc.method_handlers_generic_handler("holdfast.v1.OperatorService", {"Sync": stream})
        )
        watch: Any = grpc.unary_stream_rpc_method_handler(_watch)
        made.append(
            grpc.method_handlers_generic_handler("holdfast.v1.JobService", {"WatchJob": watch})
        )
        return tuple(made)

    async def _sync(self, owner: Owner, context: Any) -> AsyncIterator[bytes]:
        orders = _Orders()
        self.streams += 1
        try:
            while not orders.take(await _next(context)):
                pass
            reading = asyncio.create_task(_heed(context, orders))
            status = _status(owner, orders.spec)
            try:
                yield codec.encode(wire.SyncResponse(message=status))
                while True:
                    pace = max(self.step_seconds, orders.spec.progress_seconds)
                    await asyncio.sleep(pace or 1.0)
                    if self.step_seconds:
                        status = dataclasses.replace(status, step=status.step + 1)
                        yield codec.encode(wire.SyncResponse(message=status))
            finally:
                reading.cancel()
        finally:
            self.streams -= 1


@dataclasses.dataclass(slots=True)
class _Orders:
    """What an operator has told a master so far."""

    spec: wire.MasterSpec = dataclasses.field(default_factory=wire.MasterSpec)

    def take(self, said: object) -> bool:
        """Take a message; return True for the end of the list of pods."""
        if isinstance(said, wire.MasterSpec):
            self.spec = said
        return isinstance(said, wire.PodListDone)


async def _next(context: Any) -> Any:
    data = await context.read()
    if data is grpc.aio.EOF:
        raise asyncio.CancelledError
    return codec.decode(wire.SyncRequest, data).message


async def _heed(context: Any, orders: _Orders) -> None:
    """Read what comes after the list of pods: the first jobs of many are told a slower pace."""
    while (data := await context.read()) is not grpc.aio.EOF:
        orders.take(codec.decode(wire.SyncRequest, data).message)


async def _watch(_request: bytes, _context: object) -> AsyncIterator[bytes]:
    yield codec.encode(wire.WatchJobResponse(message=wire.JobSnapshot()))
    await asyncio.Event().wait()


def _status(owner: Owner, spec: wire.MasterSpec) -> wire.JobStatus:
    size = spec.replicas
    return wire.JobStatus(
        name=owner.name,
        uid=owner.uid,
        phase=wire.JobPhase.TRAINING,
        epoch=1,
        round=1,
        world_size=size,
        active_nodes=size,
        ready_nodes=size,
        replicas=size,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        step=1,
        goodput=1.0,
        generation=spec.generation,
    )


def _credentials(root_key: bytes, owner: Owner) -> grpc.ServerCredentials:
    """Issue a master's certificate as the operator does."""
    now = dt.datetime.now(dt.UTC)
    authority = JobAuthority(root_key, owner.uid, now)
    made = authority.issue(Identity(owner.uid, keys.ROLE_MASTER), now, _LIFETIME, ())
    pair = (made.key, made.certificate)
    return grpc.ssl_server_credentials([pair], made.ca, require_client_auth=True)
