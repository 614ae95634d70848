"""The master's last messages over `OperatorService.Sync`, folded into one frozen value.

A decision stays until a newer message replaces it, so a plan can be made again at any time.
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
"""Messages in a SyncResponse."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobOutcome:
    """End of a job: success or failure, with its reason."""

    succeeded: bool
    reason: str
    """CamelCase, for conditions."""
    text: str
    decided_at: float
    """Time at which this side learnt of it; Unix time, s."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MasterView:
    """The master as known here; without arguments, one without a message yet."""

    connected: bool = False
    """True: a stream to it is open."""
    silent_since: float | None = None
    """Time at which the last stream ended; Unix time, s; None before that."""
    speaker: str = ""
    """Uid of the pod at its other end; empty: unknown, or the pod was started again."""
    status: JobStatus | None = None
    """Its newest status; None before the first."""
    replace: Mapping[int, ReplaceDecision] = dataclasses.field(default_factory=dict)
    """Node rank → decision to replace its pod."""
    released: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Node ranks that no world needs → generation of the spec at that time."""
    scale: ScaleDecision | None = None
    """Decision on another size that has no answer yet."""
    excluded: tuple[str, ...] = ()
    """Kubernetes nodes to avoid, the newest last."""
    outcome: JobOutcome | None = None
    """End of the job; None while it goes on."""

    def hear(self, said: Said, *, now: float, generation: int) -> MasterView:
        """Return the view after one more message.

        Args:
            said: Message of the stream.
            now: Unix time, s.
            generation: Generation of the spec that this side has sent last.
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
                newest = () if said.lifted else (said.node,)
                return dataclasses.replace(self, connected=True, excluded=(*kept, *newest))
        return self._finish(said, now)

    def answered(self, decision_id: int) -> MasterView:
        """Return the view after a ScaleResult was sent for that decision."""
        if self.scale is None or self.scale.decision_id != decision_id:
            return self
        return dataclasses.replace(self, scale=None)

    def met(self, uid: str) -> MasterView:
        """Return the view once the pod at the other end is known."""
        return dataclasses.replace(self, speaker=uid)

    def disconnected(self, now: float | None = None) -> MasterView:
        """Return the view after the stream ended: its messages still hold."""
        return dataclasses.replace(self, connected=False, silent_since=now)

    def _finish(self, said: FinishDecision, now: float) -> MasterView:
        since = now if self.outcome is None else self.outcome.decided_at
        outcome = JobOutcome(said.succeeded, said.reason, said.text, since)
        return dataclasses.replace(self, connected=True, outcome=outcome)


def _new(nodes: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(node for node in dict.fromkeys(nodes) if node not in known)
