"""Interface of a trigger, which says when replicas agree, and the trigger that counts steps.

Belongs here: the interface, with what it says where all replicas count steps alike. Does not belong
here: which trigger a setting means (`driver.framework`), what follows (`driver.driver`), the rules
(`policies.schedule`, `policies.switching`). A new trigger is one module with a subclass of
`BySteps`; a framework makes it in `Framework.trigger`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.schedule import Boundary, Entry, boundary
from holdfast.local_sgd.policies.switching import NOTHING_AGREED, Agreed

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.local_sgd.sync.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of members that was carried out, as far as a trigger has to know of it."""

    store: dist.Store | None
    """Where the members meet, and no others; None: in that of the default group."""
    rounds: int
    """That are made when what the change has left over is done; of all replicas alike."""
    steps: int
    """This replica's, since the last of these."""
    joined: bool
    """This replica has come to the others."""
    is_left_over: bool
    """A round is made again, now."""
    is_up: bool
    """This replica had entered a round by time that nobody has begun: its time is up."""
    agreed: Agreed
    """The newest choice of an interval."""


class Replicas(Protocol):
    """The replicas, as far as a trigger goes."""

    averages: bool
    """Gradients can be averaged over them in each step."""

    @property
    def group(self) -> Group:
        """The ranks that hold this rank's shards, one of each replica that is there."""

    @property
    def own(self) -> Group:
        """The ranks of this replica."""

    @property
    def voters(self) -> Group | None:
        """The same, where a step that fails on one of them has to fail on all; else None."""

    def has_changed(self) -> bool:
        """Tell at once, without a collective, if there is a newer roster."""


class BySteps:
    """EDiT: rounds end after each H steps. Other triggers take over what they do not change.

    Each rank of a replica has one, and all of them ask at the same steps.
    """

    in_step = True
    """All replicas end their rounds after the same steps of the optimizer."""

    def __init__(self, config: LocalSGDConfig) -> None:
        """Take warm-up and interval."""
        self._config = config

    @property
    def is_sync(self) -> bool:
        """Gradients are averaged over the replicas, also behind the warm-up."""
        return False

    @property
    def agreed(self) -> Agreed:
        """The choice of an interval, for others that go on as this replica does."""
        return NOTHING_AGREED

    def rounds(self, made: int) -> int:
        """Rounds so far, alike on all replicas; made: by this replica's units."""
        return made

    def warmed(self, steps: int) -> Boundary:
        """Take note of a step of the warm-up."""
        return boundary(steps, self._config)

    def stepped(self, steps: int, *, is_made: bool = True) -> Boundary:
        """Count a lone step.

        Args:
            steps: Of the optimizer, over the training.
            is_made: False: a loss scaler has left it out; counted all the same by steps.

        Raises:
            SyncError: a rank is gone, or the members have changed.
        """
        del is_made
        return boundary(steps, self._config)

    def exhausted(self) -> Entry:
        """Wait for the next round without a step, since this replica has no more data."""
        return Entry.LAST

    def reducing(self) -> AbstractContextManager[None]:
        """Measure a reduction, where something depends on how long it takes."""
        return nullcontext()

    def restart(self) -> None:
        """Begin, with the anchors; nothing was counted before."""

    def move(self, change: Change) -> None:
        """Go on with other members; all of them call this."""

    def state(self) -> dict[str, Any]:
        """State for a checkpoint besides the counters, by name."""
        return {}

    def load(self, clock: Mapping[str, Any]) -> None:
        """Go on from the counters of a checkpoint: steps, alone, due, rounds, and `state`."""
