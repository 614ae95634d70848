"""The master as known here: its last messages, folded into one frozen value, and its fence.

A decision stays until a newer message replaces it, so a plan can be made again at any time. Only
the newest master started or connected counts: one that stood still while its successor began does
not know that it is outdated. If both were obeyed, the older could delete what the newer needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_operator.spec.job import SpecVersion
from holdfast_wire.messages import (
    ExcludeDecision,
    Fence,
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
    released: Mapping[int, SpecVersion] = dataclasses.field(default_factory=dict)
    """Node ranks that no world needs → version of the spec at that time."""
    scale: ScaleDecision | None = None
    """Decision on another size that has no answer yet."""
    excluded: tuple[str, ...] = ()
    """Kubernetes nodes to avoid, the newest last."""
    outcome: JobOutcome | None = None
    """End of the job; None while it goes on."""

    def hear(self, said: Said, *, now: float, version: SpecVersion) -> MasterView:
        """Return the view after one more message.

        `version`: of the spec that this side has sent last.
        """
        view = dataclasses.replace(self, connected=True)
        match said:
            case JobStatus():
                excluded = tuple(dict.fromkeys((*self.excluded, *said.excluded_nodes)))
                return dataclasses.replace(view, status=said, excluded=excluded)
            case ReplaceDecision():
                decisions = {**self.replace, said.node_rank: said}
                return dataclasses.replace(view, replace=decisions)
            case ReleaseDecision():
                ranks = dict.fromkeys(said.node_ranks, version)
                return dataclasses.replace(view, released={**self.released, **ranks})
            case ScaleDecision():
                return dataclasses.replace(view, scale=said)
            case ExcludeDecision():
                kept = tuple(node for node in self.excluded if node != said.node)
                newest = () if said.lifted else (said.node,)
                return dataclasses.replace(view, excluded=(*kept, *newest))
        since = now if self.outcome is None else self.outcome.decided_at
        outcome = JobOutcome(said.succeeded, said.reason, said.text, since)
        return dataclasses.replace(view, outcome=outcome)

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownMaster:
    """Newest known master; without arguments, none."""

    epoch: int = 0
    incarnation: str = ""
    """Incarnation of the master that was heard; empty: no master of this epoch was."""

    def refusal(self, fence: Fence | None) -> str:
        """Return the reason to drop a message; empty: act on it.

        A message without a fence is from a master one minor release older, which sends none here.
        """
        if fence is None or fence.epoch == 0:
            return ""
        if fence.epoch < self.epoch:
            return f"its epoch is {fence.epoch}, there is a master of epoch {self.epoch}"
        other = fence.epoch == self.epoch and fence.incarnation != self.incarnation
        if other and self.incarnation:
            return f"another master has its epoch, {fence.epoch}, and was heard first"
        return ""

    def heard(self, fence: Fence | None) -> KnownMaster:
        """Return the knowledge after a message that was acted on."""
        if fence is None or fence.epoch == 0:
            return self
        return KnownMaster(epoch=fence.epoch, incarnation=fence.incarnation)

    def started(self, epoch: int) -> KnownMaster:
        """Return the knowledge once a master of this epoch was started: older ones are given up."""
        return KnownMaster(epoch=epoch) if epoch > self.epoch else self

    def ended(self) -> KnownMaster:
        """Return the knowledge once the process of this epoch is seen to have ended.

        A master one minor release older that keeps no journal begins again with the same epoch.
        """
        return dataclasses.replace(self, incarnation="")
