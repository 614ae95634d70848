"""State that a joiner is given: weights, the optimizer's state, buffers, and what a script carries.

Belongs here: the parts, and their way from a donor to a joiner while both do other work. Does not
belong here: who gives to whom (`meeting`), and when (`replicated`).

Weights change in `optimizer.step()` only. So a donor gives while it computes gradients, in a
thread, and waits before it steps. A joiner computes nothing in that time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.flash.trainer.leaves import StateError, Stateful
from holdfast.flash.trainer.values import decode_value, encode_value
from holdfast.local_sgd.driver.changing import numbers_of, take_numbers
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.members.carried import Carried
from holdfast.local_sgd.sync.fresh_group import CONNECT, watched_store
from holdfast.local_sgd.sync.group import SyncError
from holdfast.local_sgd.sync.inner_state import TorchInnerState
from holdfast.local_sgd.sync.transfer_bytes import StateEntry, pack, unpack
from holdfast.replicas.buckets import local
from holdfast.replicas.errors import ReplicasError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

log: Final = logging.getLogger("holdfast")
Broadcast = Callable[["torch.Tensor"], None]
"""Puts the donor's tensor in the place of the receivers'; raises SyncError."""
_WEIGHT: Final = "holdfast.weight"
"""Key of the weights among an optimizer's keys."""


class JoinerState:
    """The state of one rank in parts of some megabytes, each given and taken whole."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any],
        parts: Sequence[Sequence[Any]],
    ) -> None:
        """Take the holders.

        Args:
            models: Whose buffers are given.
            optimizers: Torch's own.
            parts: Parameters of each part.
        """
        self._optimizers, self._parts = optimizers, [list(one) for one in parts]
        self._inner = TorchInnerState(
            lambda number: self._parts[number], lambda: len(self._parts), optimizers, exact=True
        )
        self._inner.add_buffers(*models)
        self._carried = Carried()
        self._groups: Sequence[Any] = ()
        """Learning rates and the like that were given, by optimizer, until they are loaded."""

    def carry(self, name: str, one: Stateful) -> None:
        """Give joiners the state of this too; raises ReplicasError if it is no plain data."""
        _begin_scaling(one, local(self._parts[0][0]).device)
        try:
            self._carried.add(name, one)
        except StateError as error:
            raise ReplicasError(str(error)) from error
        self._carried.load()

    def position(self) -> bytes:
        """Return learning rates and what the script carries, as they are now."""
        try:
            carried = self._carried.states()
        except StateError as error:
            raise ReplicasError(str(error)) from error
        numbers = [numbers_of(each.param_groups) for each in self._optimizers]
        return encode_value("position", {"groups": numbers, "carried": carried})

    def load_position(self) -> None:
        """Load what was given, as far as the script has named its holders by now."""
        self._carried.load()
        groups, self._groups = self._groups, ()
        for optimizer, numbers in zip(self._optimizers, groups, strict=False):
            for group, one in zip(optimizer.param_groups, numbers, strict=True):
                take_numbers(group, one)

    def check(self) -> None:
        """Refuse an optimizer whose state no joiner can be given; raises ReplicasError."""
        try:
            for number in range(len(self._parts)):
                self._inner.give(number)
        except LocalSGDError as error:
            raise ReplicasError(str(error)) from error

    def give(self, broadcast: Broadcast, position: bytes) -> None:
        """Give all parts, the buffers and the position; raises SyncError."""
        import torch

        for parcel in self._parcels():
            _put(parcel, broadcast)
        _put(torch.frombuffer(bytearray(position), dtype=torch.uint8), broadcast)

    def take(self, broadcast: Broadcast) -> None:
        """Take all parts in place; the position waits for `load_position`. Raises SyncError."""
        import torch

        for number in range(len(self._parts) + 1):
            entries = unpack(_got(broadcast))
            weights = [one for one in entries if one.key == _WEIGHT]
            with torch.no_grad():
                for one in weights:
                    local(self._parts[number][int(one.owner)]).copy_(one.value)
            self._inner.take(number, entries[len(weights) :])
        given = decode_value("position", bytes(_got(broadcast).tolist()))
        self._groups = given["groups"]
        self._carried.take(given["carried"])

    def _parcels(self) -> Iterable[torch.Tensor]:
        for number, part in enumerate(self._parts):
            weights = [StateEntry(at, _WEIGHT, local(one)) for at, one in enumerate(part)]
            yield pack([*weights, *self._inner.give(number)])
        yield pack(self._inner.give(len(self._parts)))


def _begin_scaling(one: Any, device: torch.device) -> None:
    """Let a GradScaler know its scale: a joiner steps before it has scaled a loss."""
    import torch

    if isinstance(one, torch.amp.GradScaler) and one.is_enabled():
        one.scale(torch.zeros((), device=device))


def _put(parcel: torch.Tensor, broadcast: Broadcast) -> None:
    import torch

    broadcast(torch.tensor([parcel.numel()], dtype=torch.int64))
    broadcast(parcel)


def _got(broadcast: Broadcast) -> torch.Tensor:
    import torch

    size = torch.zeros(1, dtype=torch.int64)
    broadcast(size)
    parcel = torch.empty(int(size), dtype=torch.uint8)
    broadcast(parcel)
    return parcel


_LOOK: Final = timedelta(milliseconds=10)
"""Between two looks at the members while a transfer is waited for. torch waits without the
interpreter's lock: a thread that looked each millisecond made the donor's step a third longer."""


class Given(NamedTuple):
    """What went from a donor to a joiner."""

    bytes: int
    seconds: float
    """From when both are connected."""


class Healing:
    """One joiner's transfer, on either side, in a thread of its own."""

    def __init__(
        self,
        state: JoinerState,
        position: bytes | None,
        meet: tuple[dist.Store, str],
        *,
        is_lost: Callable[[], bool],
        timeout: float,
    ) -> None:
        """Begin.

        Args:
            state: Of this rank.
            position: To give, where this rank is the donor; None: it takes.
            meet: The epoch's store, and a name in it that this pair alone has.
            is_lost: A member of the epoch is lost: the transfer may wait for it in vain.
            timeout: Seconds until a transfer has failed.
        """
        self._state, self._position, self._meet = state, position, meet
        self._is_lost, self._timeout = is_lost, timeout
        self._stopped = False
        self.given = Given(0, 0.0)
        self._error = ""
        self._has_ended, self._sent = threading.Event(), 0
        threading.Thread(target=self._run, name="holdfast-heal", daemon=True).start()

    def wait(self) -> None:
        """Wait for the end; raises SyncError: the transfer has failed."""
        if not self._has_ended.wait(self._timeout):
            self._stopped = True  # weights change now: what is not given must not be given any more
            raise SyncError(f"a joiner's state was not given whole in {self._timeout:g} s")
        if self._error:
            raise SyncError(f"a joiner's state was not given whole: {self._error}")

    def stop(self) -> None:
        """Give up, and return once nothing is written any more."""
        self._stopped = True
        self._has_ended.wait(self._timeout)

    def _run(self) -> None:
        """Transfer; the thread ends some time later, when gloo has left a frozen partner.

        A `finally` would say the end only then: the group goes with the error's frames.
        """
        try:
            broadcast, begun = self._connect(), time.monotonic()
            if self._position is None:
                self._state.take(broadcast)
            else:
                self._state.give(broadcast, self._position)
            self._tell(time.monotonic() - begun)
        except Exception as error:  # noqa: BLE001 - a state is whole or not, whatever the reason
            self._error = f"{type(error).__name__}: {error}"  # an error would keep the group alive
            if not self._stopped:
                log.warning("replicas: a joiner's state was not given whole: %s", self._error)
            self._has_ended.set()
        else:
            self._has_ended.set()

    def _tell(self, seconds: float) -> None:
        self.given = Given(self._sent, seconds)
        if self._position is None:
            text = "replicas: was given the state of the others: %.1f MB in %.2f s"
            log.info(text, self._sent / 1e6, seconds)

    def _connect(self) -> Broadcast:
        import torch.distributed as dist

        store, name = self._meet
        watched = watched_store(store, self._ends)
        prefixed = dist.PrefixStore(name, watched)
        rank, limit = int(self._position is None), timedelta(seconds=CONNECT)
        group: Any = dist.ProcessGroupGloo(prefixed, rank, 2, limit)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=self._timeout)  # else that of connecting

        def broadcast(tensor: torch.Tensor) -> None:
            if self._ends():
                raise SyncError("it was stopped, or a member is lost")
            self._until_done(group.broadcast([tensor], options))
            self._sent += tensor.nbytes

        return broadcast

    def _until_done(self, work: Any) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._ends() and time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):
                work.wait(_LOOK)
            if work.is_completed():  # also one that has ended since the look
                work.wait()
                return
        raise SyncError("a member is lost, or the time is up")

    def _ends(self) -> bool:
        return self._stopped or self._is_lost()
