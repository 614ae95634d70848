"""An agent without workers: speaks the protocol over real mTLS and keeps what it was told.

Reconnects as a real agent does, re-stating its round. Runs in threads of its own.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from holdfast_agent.policies import master_messages
from holdfast_wire import channel, codec, errors
from holdfast_wire.identity import Identity
from holdfast_wire.messages import (
    BarrierAck,
    BarrierReached,
    CommandDone,
    DumpStacks,
    Fence,
    Heartbeat,
    Hello,
    Leave,
    PrepareStore,
    RankProgress,
    RankStack,
    RoundStarted,
    RoundStopped,
    RunningWorker,
    SessionRequest,
    SessionResponse,
    SetBarrier,
    StopRound,
    StorePrepared,
    Welcome,
    WorldAssignment,
)
from house.patience import patience
from messages import certificates

JOB = "j1"
STEP_SECONDS = 0.02
_IDS = itertools.count(1)


class ScriptedAgent:
    """One node's agent with one rank, which trains as soon as it has a world."""

    def __init__(self, directory: Path, port: int, rank: int, **hello: Any) -> None:
        """Connect to the master at `port` and go on until `close`."""
        self.rank = rank
        self.agent_id = f"agent-{rank}-{next(_IDS)}"
        self.received: list[Any] = []
        self.assignments: list[WorldAssignment] = []
        self.refusals: list[errors.Refusal] = []
        self.welcomes: list[Welcome] = []
        self.amiss: list[Any] = []
        """First messages of streams that a real agent would have given up."""
        self.connections = 0
        self.fence = Fence()
        self.step = 0
        self.left: Leave | None = None
        self.heartbeat_seconds = 0.1
        self._hello = hello
        self._round_began = 0.0
        self._running = False
        self._tls = certificates.issue(directory, Identity(JOB, "agent", rank))
        self._port = port
        self._sending: queue.Queue[bytes | None] = queue.Queue()
        self._closed = threading.Event()
        self._call: Any = None
        self._threads = [
            threading.Thread(target=self._connect_for_ever, name=self.agent_id, daemon=True),
            threading.Thread(target=self._beat, name=f"{self.agent_id}-beat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def round(self) -> int:
        """Round of the newest assignment; 0: none."""
        return self.fence.round

    def send(self, message: Any) -> None:
        """Send one message under the fence that was accepted last."""
        self._sending.put(codec.encode(SessionRequest(fence=self.fence, message=message)))

    def blip(self) -> None:
        """Break the stream; it comes back at once."""
        self._call.cancel()

    def close(self) -> None:
        """Vanish, as a killed process does."""
        self._closed.set()
        self._sending.put(None)
        if self._call is not None:
            self._call.cancel()
        for thread in self._threads:
            thread.join(timeout=10)
        assert not self.amiss, "a stream began with neither a Welcome nor a Leave"

    def wait_for(self, look: Any, seconds: float = 20.0 * patience()) -> Any:
        """Return what `look()` gives once it is true."""
        end = time.monotonic() + seconds
        while not (seen := look()):
            assert time.monotonic() < end, f"not within {seconds} s; got {self.received[-5:]}"
            time.sleep(0.005)
        return seen

    def _connect_for_ever(self) -> None:
        options = channel.master_channel_options(JOB)
        credentials = channel.channel_credentials(self._tls)
        while not self._closed.is_set() and self.left is None:
            target = f"127.0.0.1:{self._port}"
            with grpc.secure_channel(target, credentials, options=options) as made:
                self._converse(made)
            self._closed.wait(0.05)

    def _converse(self, made: grpc.Channel) -> None:
        self._sending = queue.Queue()
        self.send(self._make_hello())
        call: Any = made.stream_stream("/holdfast.v1.AgentService/Session")
        self._call = call(self._requests(self._sending))
        try:
            for number, data in enumerate(self._call):
                response = codec.decode(SessionResponse, data)
                if number == 0 and not master_messages.may_open(response.message):
                    self.amiss.append(response.message)
                self._take(response)
        except grpc.RpcError as error:
            self.refusals.append(errors.read(error))
        finally:
            self._sending.put(None)  # or gRPC's thread for this stream waits for ever

    def _requests(self, sending: queue.Queue[bytes | None]) -> Iterator[bytes]:
        while (data := sending.get()) is not None:
            yield data

    def _make_hello(self) -> Hello:
        base = Hello(
            job_uid=JOB,
            node_rank=self.rank,
            agent_id=self.agent_id,
            pod_uid=f"pod-{self.agent_id}",
            host=f"host-{self.rank}",
            address="127.0.0.1",
            local_world_size=1,
            warm=True,
            unmanaged=True,
            round=self.round,
            step=self.step,
            workers=(RunningWorker(pid=1, round=self.round),) if self._running else (),
            assignment=self.assignments[-1] if self._running else None,
        )
        fields = {name: getattr(base, name) for name in base.__slots__}
        return Hello(**{**fields, **self._hello})

    def _beat(self) -> None:
        for sequence in itertools.count(1):
            if self._closed.wait(self.heartbeat_seconds):
                return
            self.send(Heartbeat(sequence=sequence, ranks=self._ranks()))

    def _ranks(self) -> tuple[RankProgress, ...]:
        if not self._running:
            return ()
        self.step = max(self.step, int((time.monotonic() - self._round_began) / STEP_SECONDS))
        progress = RankProgress(
            round=self.round,
            step=self.step,
            step_seconds=STEP_SECONDS,
            has_sdk=True,
            pid=1,
            first_step=1,
        )
        return (progress,)

    def _take(self, response: SessionResponse) -> None:
        message, fence = response.message, response.fence
        self.received.append(message)
        if isinstance(message, Welcome) and fence is not None:
            self.welcomes.append(message)
            self.connections += 1
            self.fence = Fence(
                epoch=fence.epoch, incarnation=fence.incarnation, round=self.fence.round
            )
        react = _REACTIONS.get(type(message))
        if react is not None:
            react(self, message, fence)

    def _store(self, message: PrepareStore, _fence: Fence) -> None:
        port = 20_000 + len(self.received)
        self.send(StorePrepared(store_id=message.store_id, host="127.0.0.1", port=port))

    def _start(self, message: WorldAssignment, fence: Fence) -> None:
        self.fence = fence
        self.assignments.append(message)
        self.send(RoundStarted(killed_seconds=0.01, spawned_seconds=0.02))
        self._running = True
        self._round_began = time.monotonic() - self.step * STEP_SECONDS
        self.send(RoundStarted(first_step=True, step=self.step + 1, first_step_seconds=0.05))

    def _barrier(self, message: SetBarrier, _fence: Fence) -> None:
        self.send(BarrierAck(barrier_id=message.barrier_id, seen_at_step=self.step))
        self._running = False
        self.step = max(self.step, message.step)
        self.send(BarrierReached(barrier_id=message.barrier_id, step=message.step))

    def _stop(self, message: StopRound, _fence: Fence) -> None:
        self._running = False
        self.send(RoundStopped())
        self.send(CommandDone(command_id=message.command_id, ok=True))

    def _dump(self, message: DumpStacks, _fence: Fence) -> None:
        stack = RankStack(rank=self.rank, pid=1, text="in train")
        self.send(CommandDone(command_id=message.command_id, ok=True, stacks=(stack,)))

    def _leave(self, message: Leave, _fence: Fence) -> None:
        self._running = False
        self.left = message
        self._sending.put(None)


_REACTIONS: dict[type, Any] = {
    PrepareStore: ScriptedAgent._store,
    WorldAssignment: ScriptedAgent._start,
    SetBarrier: ScriptedAgent._barrier,
    StopRound: ScriptedAgent._stop,
    DumpStacks: ScriptedAgent._dump,
    Leave: ScriptedAgent._leave,
}
