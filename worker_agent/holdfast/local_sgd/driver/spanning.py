"""Collectives that span replicas in local steps: named once, and refused where rounds end by time.

Belongs here: that a script or a layer makes them, and which layer. Does not belong here: the
collectives of a round (`sync`), which run between two looks or in groups of their own.

A layer such as SyncBatchNorm, DDP's broadcast of buffers, DDP without the hook, a mean that is
logged: with rounds by steps each of these has all replicas wait for the slowest, in each step.
With rounds by time a replica that waits in a round never comes to it, and all wait for ever. Each
process group counts its collectives, so a look costs less than a microsecond.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

log: Final = logging.getLogger("holdfast")
_IN_A_ROW: Final = 3
"""Local steps with such a collective after which rounds by steps name it: a mean that is logged now
and then holds nobody up."""


class SpanningCollectives:
    """The collectives of a group that spans replicas, counted from step to step."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        model: nn.Module | None = None,
        *,
        by_time: bool,
        skips: int = 0,
    ) -> None:
        """Begin to count.

        Args:
            group: Has ranks of several replicas; None: nothing spans any.
            model: Whose layers are named; None: it is not known.
            by_time: Refuse them.
            skips: First steps of this process that are not looked at.
        """
        self._group, self._model, self._by_time = group, model, by_time
        self._seen, self._steps, self._is_told, self._skips = 0, 0, False, skips
        self._layers: list[str] = []
        self._handles: list[Any] = []
        self.after_count()

    def before_count(self, alone: int) -> None:
        """Look at the end of a step, before anything of a round runs.

        Args:
            alone: Local steps since the last round, without this one. After a round scripts save.

        Raises:
            LocalSGDError: rounds end by time, and there was one.
        """
        if self._group is None:
            return
        if self._skips:
            self._skips -= 1
            return
        spans = self._count() > self._seen
        if self._handles:
            self._tell()
        elif alone and not self._is_told:
            self._steps = self._steps + 1 if spans else 0
            if self._steps >= (1 if self._by_time else _IN_A_ROW):
                self._watch_layers()

    def after_count(self) -> None:
        """Look again, when a round has run."""
        if self._group is not None:
            self._seen = self._count()

    def leave(self) -> None:
        """Take the hooks off the layers."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _count(self) -> int:
        group: Any = self._group
        number: int = group._get_sequence_number_for_group()  # noqa: SLF001 - no public way
        return number

    def _watch_layers(self) -> None:
        """Have the next step show which layers make them."""
        if self._model is None:
            self._tell()
            return
        for name, module in self._model.named_modules():
            begun: list[int] = []
            before = functools.partial(self._begin, begun)
            after = functools.partial(self._note, name, begun)
            self._handles.append(module.register_forward_pre_hook(before))
            self._handles.append(module.register_forward_hook(after))

    def _begin(self, begun: list[int], *_: Any) -> None:
        begun.append(self._count())

    def _note(self, name: str, begun: list[int], module: nn.Module, *_: Any) -> None:
        """Note a layer whose forward made one, unless a layer within it did."""
        within = any(one.startswith(f"{name}." if name else "") for one in self._layers)
        if self._count() > begun.pop() and not within:
            self._layers.append(f"{name or 'root'} ({type(module).__name__})")

    def _tell(self) -> None:
        import torch.distributed as dist

        self._is_told = True
        self.leave()
        where = f"layer {', '.join(self._layers)}" if self._layers else "the script or DDP"
        text = f"{where} makes collectives over all replicas in local steps"
        if self._by_time:
            raise LocalSGDError(
                f"use_async=True: {text}, and a replica that waits in a round by time never comes "
                "to them, so all would wait for ever. Give the layer a group of this replica's "
                "ranks (SyncBatchNorm's process_group), pass DDP broadcast_buffers=False and the "
                "hook, average logged values inside a replica, or let rounds end by steps"
            )
        level = logging.WARNING if dist.get_rank() == 0 else logging.DEBUG
        log.log(
            level,
            "local SGD: %s, so each step waits for the slowest replica, and the slow links carry "
            "them. Under DDP register the hook and pass broadcast_buffers=False; give a layer a "
            "group of this replica's ranks",
            text,
        )


def spanning(
    replicas: Group, model: nn.Module | None = None, *, by_time: bool, own: bool, skips: int = 0
) -> SpanningCollectives:
    """Return the count of what spans fixed replicas; see `SpanningCollectives`.

    own: rounds have groups of their own, so that the default group's collectives count.
    """
    import torch.distributed as dist

    group = None
    if replicas.size > 1:
        group = dist.group.WORLD if own else replicas.ranks
    return SpanningCollectives(group, model, by_time=by_time, skips=skips)
