"""`torchrun --rdzv-backend=holdfast`: torch's rendezvous interface on a job master.

torchrun calls it, from its own thread; the session with the master is in `node`. torch and grpc are
imported inside functions: torch loads this module whenever its own launcher is imported, even
inside an agent whose zygote must not have grpc.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast_agent.config import host_address
from holdfast_agent.config import settings as agent_settings
from holdfast_agent.config.settings import Settings
from holdfast_agent.text_limits import cut
from holdfast_wire.keys import RDZV_BACKEND
from holdfast_wire.messages import Goodbye, LeaveOutcome, RoundStarted, WorkerExited

if TYPE_CHECKING:
    from holdfast_agent.torchrun.node import RoundAssignment, TorchrunNode

log = logging.getLogger(__name__)

KEPT_STORES = 2
"""Stores kept: the running round's and the next one's."""
ANSWER_SECONDS = 60.0
"""Seconds for an answer of another node's store."""
CONNECT_SECONDS = 5.0
"""Seconds for one try to reach it; between two tries the master's messages are handled."""

_THERE = "holdfast/there/"
_ALL_THERE = "holdfast/all_there"


class TorchrunStores:
    """Stores that this torchrun serves or uses. `serve` may be called on another thread."""

    def __init__(self, own: str) -> None:
        """Serve nothing yet. own: this node's IP."""
        self._own = own
        self._served: OrderedDict[str, Any] = OrderedDict()
        self._reached: dict[int, Any] = {}
        """Round → store; only the node that serves a store knows its id."""

    def serve(self, store_id: str) -> int:
        """Start a store and return its port."""
        from torch.distributed import TCPStore

        store = TCPStore(self._own, 0, is_master=True, wait_for_workers=False)
        self._served[store_id] = store
        while len(self._served) > KEPT_STORES:
            self._served.popitem(last=False)
        return int(store.port)

    def of(self, place: RoundAssignment) -> Any:
        """Return the store of a round; raises torch's DistError, a RuntimeError."""
        from torch.distributed import PrefixStore

        return PrefixStore(f"holdfast/{place.round}", self._store(place))

    def all_there(self, place: RoundAssignment) -> bool:
        """Announce this torchrun in the round; return True if all torchruns of the round are there.

        Group rank 0 checks all, the others wait for its result: one key per node in all.
        """
        world = place.assignment
        everyone = [f"{_THERE}{rank}" for rank in range(world.group_world_size)]
        try:
            store = self.of(place)
            store.set(f"{_THERE}{world.group_rank}", b"1")
            there = store.check(everyone if world.group_rank == 0 else [_ALL_THERE])
            if there and world.group_rank == 0:
                store.set(_ALL_THERE, b"1")
        except RuntimeError as error:  # its host has ended, or is not reachable now
            log.debug("the store of round %d: %s", place.round, error)
            self._reached.clear()
            return False
        return bool(there)

    def _store(self, place: RoundAssignment) -> Any:
        from torch.distributed import TCPStore

        world = place.assignment
        known = self._served.get(world.store_id) or self._reached.get(place.round)
        if known is not None:
            return known
        limit = timedelta(seconds=CONNECT_SECONDS)
        made = TCPStore(world.store_host, world.store_port, is_master=False, timeout=limit)
        made.set_timeout(timedelta(seconds=ANSWER_SECONDS))
        self._reached = {place.round: made}
        return made


JOIN_SECONDS = 600.0
"""Longest rendezvous, s; --rdzv-conf join_timeout=… changes it (torch's own default)."""
LEAVE_SECONDS = 5.0
"""Longest wait for the master's Leave after success, s."""
CLOSE_SECONDS = 2.0
GATHER_SECONDS = 0.1
"""Seconds between two checks that every torchrun of a world is in it."""


def register() -> Callable[[Any], Any]:
    """Return the creator of handlers: entry point of the group `torchrun.handlers`."""
    return create


def create(params: Any) -> HoldfastHandler:
    """Return a handler for torch's RendezvousParameters.

    Raises ValueError: the environment does not name the master, the job and the node.
    """
    from torch.distributed.elastic.rendezvous import RendezvousHandler

    # A virtual subclass, so that this module can be imported without torch.
    RendezvousHandler.register(HoldfastHandler)
    text = params.get("nproc") or nproc_of(sys.argv[1:])
    settings = agent_settings.for_torchrun(os.environ, params.endpoint, text)
    own = host_address.towards(settings.master)
    if params.local_addr:
        own = host_address.of_this_machine(params.local_addr, host_address.LOCAL_ADDR_FLAG)
    timeout = float(params.get("join_timeout", JOIN_SECONDS))
    return HoldfastHandler(settings, params.run_id, own, timeout)


def nproc_of(argv: Sequence[str]) -> str | None:
    """Return --nproc-per-node of torchrun's command line, which torch does not pass on.

    None if this is no torchrun (another program called its launcher).
    """
    from torch.distributed.run import get_args_parser

    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return str(get_args_parser().parse_args(list(argv)).nproc_per_node)
    return None


class HoldfastHandler:
    """Joins worlds through the job master."""

    def __init__(self, settings: Settings, run_id: str, own: str, join_seconds: float) -> None:
        """Connect to nothing before the first rendezvous. `own`: this node's IP."""
        self._settings = settings
        self._run_id = run_id
        self._own = own
        self._join_seconds = join_seconds
        self._node: TorchrunNode | None = None
        self._joined: RoundAssignment | None = None
        self._stores = TorchrunStores(own)
        self._closed = False

    use_agent_store = True
    """Trainers use the store that `next_rendezvous` returns."""

    def get_backend(self) -> str:
        """Return the name of this backend."""
        return RDZV_BACKEND

    def get_run_id(self) -> str:
        """Return the run id that torchrun was given."""
        return self._run_id

    def next_rendezvous(self) -> Any:
        """Wait for the next world and return torch's RendezvousInfo.

        A second call while the last world is still the newest one means that torchrun's own workers
        have failed: the handler tells the master, which decides on a new round.
        """
        node = self._started()
        with node.changed:
            current = node.place is not None and node.place is self._joined
        if current and self._joined is not None:
            failed = _exited(self._joined, 0, 1, "torchrun restarts its workers")
            node.report(failed, self._joined.round)
        deadline = time.monotonic() + self._join_seconds
        while True:
            place = self._wait(node, deadline)
            self._joined = place
            if self._gather(node, place, deadline):
                break
        info = self._info(place)
        node.report(RoundStarted(), place.round)
        return info

    def num_nodes_waiting(self) -> int:
        """Return 1 if the master has a newer world, or wants this node to leave."""
        node = self._node
        if node is None:
            return 0
        with node.changed:
            return int(node.left is not None or node.place is not self._joined)

    def is_closed(self) -> bool:
        """Return True if there will be no further world here."""
        return self._closed or (self._node is not None and self._node.left is not None)

    def set_closed(self) -> None:
        """Take part in no further world."""
        self._closed = True

    def shutdown(self) -> bool:
        """Tell the master how torchrun ended, and close the session."""
        self._closed = True
        node, place = self._node, self._joined
        if node is None:
            return True
        # torchrun calls this in a `finally`: a pending exception means that the run failed.
        error = sys.exc_info()[1]
        number = place.round if place is not None else 0
        for message in self._last_words(place, error):
            node.report(message, number)
        if error is None and place is not None:
            with node.changed:
                node.changed.wait_for(lambda: node.left or node.fault, LEAVE_SECONDS)
        return node.stop(CLOSE_SECONDS)

    def _last_words(
        self, place: RoundAssignment | None, error: BaseException | None
    ) -> list[WorkerExited] | list[Goodbye]:
        """Return the workers' ends, as far as torchrun's end shows them, or a goodbye."""
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        if place is not None and error is None:
            sizes = range(self._settings.launch.local_world_size)
            return [_exited(place, local_rank, 0, "") for local_rank in sizes]
        if place is not None and isinstance(error, ChildFailedError):
            return [
                _exited(place, failure.local_rank, failure.exitcode, _message(failure), final=True)
                for failure in error.failures.values()
            ]
        reason = "torchrun ended" if error is None else f"{type(error).__name__}: {error}"
        return [Goodbye(reason=cut(reason), failed=error is not None)]

    def _started(self) -> TorchrunNode:
        if self._node is None:
            from holdfast_agent.torchrun.node import TorchrunNode

            agent_id = secrets.token_hex(8)
            self._node = TorchrunNode(self._settings, agent_id, self._own, self._stores.serve)
            self._node.start()
        return self._node

    def _wait(self, node: TorchrunNode, deadline: float) -> RoundAssignment:
        from torch.distributed.elastic.rendezvous import (
            RendezvousClosedError,
            RendezvousConnectionError,
            RendezvousGracefulExitError,
            RendezvousTimeoutError,
        )

        with node.changed:
            while True:
                if node.fault:
                    raise RendezvousConnectionError(f"no job master: {node.fault}")
                if node.left is not None:
                    graceful = node.left.outcome is not LeaveOutcome.FAILED
                    kind = RendezvousGracefulExitError if graceful else RendezvousClosedError
                    raise kind(node.left.reason)
                if self._closed:
                    raise RendezvousClosedError("the rendezvous is closed")
                if node.place is not None and node.place is not self._joined:
                    return node.place
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RendezvousTimeoutError(
                        f"no world within {self._join_seconds:.0f} s from {self._settings.master}"
                    )
                # In short waits, so that torchrun's signal handlers run.
                node.changed.wait(min(left, 0.5))

    def _gather(self, node: TorchrunNode, place: RoundAssignment, deadline: float) -> bool:
        """Wait until every torchrun of the world is in it; False: look for another world.

        torchrun's next step waits in the store for all of them, and ignores news of the master. If
        one of them has ended since the world was decided, it would wait until the store's time-out.
        """
        while time.monotonic() < deadline:
            with node.changed:
                if node.place is not place or node.left or node.fault or self._closed:
                    return False
            if self._stores.all_there(place):
                return True
            with node.changed:
                node.changed.wait(GATHER_SECONDS)
        return False

    def _info(self, place: RoundAssignment) -> Any:
        from torch.distributed.elastic.rendezvous import RendezvousInfo
        from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

        world = place.assignment
        return RendezvousInfo(
            self._stores.of(place),
            world.group_rank,
            world.group_world_size,
            RendezvousStoreInfo(world.store_host, world.store_port),
        )


def _exited(
    place: RoundAssignment, local_rank: int, code: int, text: str, *, final: bool = False
) -> WorkerExited:
    return WorkerExited(
        local_rank=local_rank,
        rank=place.assignment.base_rank + local_rank,
        exit_code=code,
        error_message=cut(text),
        final=final,
    )


def _message(failure: Any) -> str:
    """Return torch's description of a failed worker: a text, or a record of an exception."""
    message = failure.message
    return str(message.get("message", "")) if isinstance(message, dict) else str(message)
