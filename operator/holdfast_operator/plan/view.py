"""What the master last said over `OperatorService.Sync`, folded into one frozen value.

Decisions stay until something newer replaces them, so a plan can be made again at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_wire.messages import (
    ExcludeDecision,
    FinishDecision,
    JobStatus,
    ReleaseDecision,
    ReplaceDecision,
    ScaleDecision,
)

Said = (
    JobStatus | ReplaceDecision | ReleaseDecision | ScaleDecision | ExcludeDecision | FinishDecision
)
"""What a SyncResponse can carry."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ends."""

    succeeded: bool
    reason: str
    """CamelCase, for conditions."""
    text: str
    decided_at: float
    """Unix time, s, at which this side learnt of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MasterView:
    """The master as this side knows it; without arguments, one that has said nothing yet."""

    connected: bool = False
    """Whether a stream to it is open."""
    silent_since: float | None = None
    """When the last stream ended; Unix time, s; None before that."""
    speaker: str = ""
    """Uid of the pod that was at its other end; empty: nobody knows, or it was started again."""
    status: JobStatus | None = None
    """Its newest status; None before the first."""
    replace: Mapping[int, ReplaceDecision] = dataclasses.field(default_factory=dict)
    """By node rank: the pod that is to be made anew."""
    released: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Node ranks that no world needs, with the generation of the spec when that was said."""
    scale: ScaleDecision | None = None
    """A wish for another size that was not answered yet."""
    excluded: tuple[str, ...] = ()
    """Kubernetes nodes to avoid, the newest last."""
    outcome: Outcome | None = None
    """How the job ends; None while it goes on."""

    def hear(self, said: Said, *, now: float, generation: int) -> MasterView:
        """The view after one more message.

        Args:
            said: What the stream brought.
            now: Unix time, s.
            generation: Of the spec that this side has sent last.
        """
        match said:
            case JobStatus():
                excluded = self.excluded + _new(said.excluded_nodes, self.excluded)
                return dataclasses.replace(self, connected=True, status=said, excluded=excluded)
            case ReplaceDecision():
                decisions = {**self.replace, said.node_rank: said}
                return dataclasses.replace(self, connected=True, replace=decisions)
            case ReleaseDecision():
                ranks = dict.fromkeys(said.node_ranks, generation)
                return dataclasses.replace(
                    self, connected=True, released={**self.released, **ranks}
                )
            case ScaleDecision():
                return dataclasses.replace(self, connected=True, scale=said)
            case ExcludeDecision():
                kept = tuple(node for node in self.excluded if node != said.node)
                return dataclasses.replace(self, connected=True, excluded=(*kept, said.node))
        return self._finish(said, now)

    def answered(self, decision_id: int) -> MasterView:
        """The view after a ScaleResult was sent for that decision."""
        if self.scale is None or self.scale.decision_id != decision_id:
            return self
        return dataclasses.replace(self, scale=None)

    def met(self, uid: str) -> MasterView:
        """The view once it is known which pod speaks."""
        return dataclasses.replace(self, speaker=uid)

    def disconnected(self, now: float | None = None) -> MasterView:
        """The view after the stream ended: what was said still holds."""
        return dataclasses.replace(self, connected=False, silent_since=now)

    def _finish(self, said: FinishDecision, now: float) -> MasterView:
        since = now if self.outcome is None else self.outcome.decided_at
        outcome = Outcome(said.succeeded, said.reason, said.text, since)
        return dataclasses.replace(self, connected=True, outcome=outcome)


def _new(nodes: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(node for node in dict.fromkeys(nodes) if node not in known)
