"""A framework, as a driver asks of it.

Belongs here: the calls, with what they do where a framework needs nothing. Does not belong here:
what a script calls (`framework`), and the frameworks themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.sync.unit_sync import Outcome
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    from holdfast.local_sgd.members.inner_state import TorchInnerState


class Adapter:
    """A framework's side: where its weights lie, and how they are written."""

    in_forward = False
    """Rounds run in the next forward, unit by unit; else whole, at the end of a step."""
    hint = ""
    """Advice for the error of replicas that are not equal at the end of the warm-up."""
    units: list[Unit]
    """Tensors that agree together, in one order on all replicas."""
    inner: TorchInnerState
    """This replica's own state, which joiners get too; fixed replicas need none."""

    def before_write(self, number: int) -> None:
        """Prepare a unit's weights for a write in a round."""

    def before_change(self, number: int) -> None:
        """Prepare a unit's weights for a write by a change of members."""
        self.before_write(number)

    def after_round(self, outcomes: list[Outcome]) -> None:
        """Take in what a round did, by unit; none: others have given this replica its end."""
        raise NotImplementedError

    def after_change(self) -> None:
        """Follow a change of members, which may have written units."""

    def check(self) -> None:
        """Refuse a model that is no longer the one of the units; raises LocalSGDError."""

    def align(self) -> None:
        """Make replicas equal before the anchors are taken behind a warm-up.

        On unlike machines the last bits may differ.
        """
        self.share_weights(0)

    def inner_groups(self) -> Iterable[Any]:
        """Groups of the inner optimizers, whose numbers a joiner gets."""
        return ()

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of the one with this rank; raises SyncError."""
        raise NotImplementedError

    def share_inner_state(self) -> None:
        """Give all replicas the first one's inner state: equal gradients must move all alike."""
        raise LocalSGDError(f"{type(self).__name__} averages no gradients in each step")
