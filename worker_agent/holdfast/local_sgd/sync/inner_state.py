"""State that is a replica's own, as a joiner gets it: the inner optimizer's moments, and buffers.

Belongs here: where torch keeps them. Does not belong here: the bytes (`transfer_bytes`), the
transfers (`regroup`), the state in a checkpoint (`shards`).

EDiT's replicas have an inner state of their own. A joiner has none: it takes that of a replica that
trains, as torchft's examples of DiLoCo do. With fresh moments its first round would be steps of a
warm-up at the full learning rate. What is not finite stays with its replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.sync.transfer_bytes import StateEntry

if TYPE_CHECKING:
    import torch
    from torch import nn

log: Final = logging.getLogger("holdfast")
Slots = Callable[[int], Sequence[Any]]
"""Number of a unit → keys of its parameters in the optimizers' state."""


class TorchInnerState:
    """Inner state in torch's optimizers and modules, by units; behind the last, buffers."""

    def __init__(
        self,
        slots: Slots,
        units: Callable[[], int],
        optimizers: Sequence[Any] = (),
        *,
        exact: bool = False,
    ) -> None:
        """Take the parameters.

        Args:
            slots: Parameters of a unit.
            units: How many units there are: the number behind the last means the buffers.
            optimizers: Torch's own, whose state is keyed by parameters.
            exact: Replicas are equal to the bit: a joiner takes all there is, also what is not
                finite, and a state that cannot be given is an error.
        """
        self._slots, self._units, self._optimizers = slots, units, optimizers
        self._exact = exact
        self._models: tuple[nn.Module, ...] = ()
        self._given: Sequence[StateEntry] = ()

    def add_buffers(self, *models: nn.Module) -> None:
        """Give later joiners the buffers of models; a joiner takes what it was given, now."""
        self._models += models
        given, self._given = self._given, ()
        self._take_buffers(given)

    def give(self, number: int) -> list[StateEntry]:
        """Return the state of a unit's parameters, or the buffers."""
        if number == self._units():
            return [StateEntry(name, "", _local(value)) for name, value in self._buffers()]
        entries = list[StateEntry]()
        for owner, slot in enumerate(self._slots(number)):
            for key, value in sorted(self._state_of(slot).items()):
                is_cut = _is_cut_as(value, slot)
                if not (is_cut or _is_plain(value)):
                    self._cannot_give(key, slot, value)
                    return []
                entries.append(StateEntry(owner, key, _local(value), is_cut))
        return entries

    def _cannot_give(self, key: str, slot: Any, value: Any) -> None:
        odd = f"{key!r} of a {type(self._of(slot)).__name__} is a {type(value).__name__}"
        if self._exact:
            raise LocalSGDError(
                f"state of the optimizer: {odd}, which no other replica can be given; use an "
                "optimizer that keeps tensors and numbers"
            )
        log.warning(
            "local SGD: a joiner begins without the inner state of a unit: %s, which no other "
            "replica can be given",
            odd,
        )

    def take(self, number: int, entries: Sequence[StateEntry]) -> None:
        """Put a unit's state, or buffers, in place: what is not finite only where `exact`."""
        import torch

        if number == self._units():
            self._take_buffers(entries)
            return
        tensors = [one.value for one in entries if torch.is_tensor(one.value)]
        if not (self._exact or all(one.isfinite().all() for one in tensors)):
            log.warning("local SGD: this joiner begins with a fresh inner state of unit %d", number)
            return
        slots = self._slots(number)
        states = {owner: self._of(slot) for owner, slot in enumerate(slots)}
        for owner, optimizer in states.items():
            if optimizer is not None:
                optimizer.state.pop(slots[owner], None)
        for one in entries:
            owner = int(one.owner)
            if states[owner] is not None:
                kept = states[owner].state.setdefault(slots[owner], {})
                kept[one.key] = _placed(one, slots[owner])

    def _take_buffers(self, entries: Sequence[StateEntry]) -> None:
        import torch

        if not self._models:
            self._given = entries
            return
        own = dict(self._buffers())
        with torch.no_grad():
            for one in entries:
                buffer, value = own.get(str(one.owner)), one.value
                fits = buffer is not None and _local(buffer).shape == value.shape
                if not fits or (value.isnan().any() and not self._exact):
                    log.warning("local SGD: this joiner keeps its own buffer %s", one.owner)
                    continue
                _local(buffer).copy_(value)

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers that a checkpoint of the models would have."""
        for number, model in enumerate(self._models):
            for prefix, module in model.named_modules():
                for name, value in module._buffers.items():  # noqa: SLF001 - no public way
                    if value is not None and name not in module._non_persistent_buffers_set:  # noqa: SLF001
                        yield f"{number}.{prefix}.{name}", value

    def _of(self, slot: Any) -> Any:
        """Return the optimizer that has a parameter; None: nobody steps it."""
        for one in self._optimizers:
            if any(slot is each for group in one.param_groups for each in group["params"]):
                return one
        return None

    def _state_of(self, slot: Any) -> dict[str, Any]:
        optimizer = self._of(slot)
        return {} if optimizer is None else dict(optimizer.state.get(slot) or {})


def _is_plain(value: Any) -> bool:
    import torch
    from torch.distributed.tensor import DTensor

    if torch.is_tensor(value):
        return type(value) in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, DTensor)
    return value is None or isinstance(value, int | float | bool)


def _is_cut_as(value: Any, slot: Any) -> bool:
    """Return True if a value is cut among the ranks as its parameter is."""
    from torch.distributed.tensor import DTensor

    if not (isinstance(value, DTensor) and isinstance(slot, DTensor)):
        return False
    return value.shape == slot.shape and value.placements == slot.placements


def _local(value: Any) -> Any:
    """Return this rank's part of a value."""
    from torch.distributed.tensor import DTensor

    return value._local_tensor if isinstance(value, DTensor) else value  # noqa: SLF001 - no graph


def _placed(entry: StateEntry, slot: Any) -> Any:
    """Return a value as the optimizer of its parameter keeps it."""
    import torch

    value = entry.value
    if entry.is_cut:
        made = torch.empty_like(slot.detach(), dtype=value.dtype)
        _local(made).copy_(value)
        return made
    if not torch.is_tensor(value) or entry.on_cpu:
        return value
    return value.to(_local(slot).device)
