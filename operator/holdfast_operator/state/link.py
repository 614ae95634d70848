"""Link of a job to its master: the stream, the messages so far, and the suspect nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from holdfast_operator.master_link import MasterLink, Upward
from holdfast_operator.nodes.probe import NodeProbe
from holdfast_operator.nodes.reachability import NodeReachability
from holdfast_operator.plan.pods import Role
from holdfast_operator.plan.view import KnownMaster, MasterView, Said
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.spec.job import NO_VERSION, SpecVersion
from holdfast_wire.messages import ClusterStrikes, Fence, StopRequest


@dataclasses.dataclass(slots=True, kw_only=True)
class Link:
    """Connection to one job's master."""

    stream: MasterLink | None = None
    """Stream to the master; None: there is none yet."""
    probe: NodeProbe | None = None
    """Probes the job's nodes."""
    view: MasterView = dataclasses.field(default_factory=MasterView)
    known: KnownMaster = dataclasses.field(default_factory=KnownMaster)
    """Newest master that was started or heard: only its messages count."""
    ends: tuple[str, int] = ("", 0)
    """Uid of the master's pod, and number of seen ends of its container."""
    reach: NodeReachability = dataclasses.field(default_factory=NodeReachability)
    """Result of the last probes."""
    stop: StopRequest | None = None
    """Request to stop that the master was sent; None: none."""
    spec_sent: SpecVersion = NO_VERSION
    """Version of the spec that the master was sent last; NO_VERSION: none."""
    progress_sent: float = 0.0
    """Shortest time between two reports of progress that the master was asked for with it, s."""
    strikes_sent: ClusterStrikes = dataclasses.field(default_factory=ClusterStrikes)
    """The newest strikes of other jobs that the master was sent."""

    def open(self, stream: MasterLink, probe: NodeProbe) -> None:
        """Take the stream and the probe, which both run."""
        self.stream, self.probe = stream, probe

    async def close(self) -> None:
        """End stream and probe; the messages so far still count."""
        if self.stream is not None:
            await self.stream.close()
        if self.probe is not None:
            await self.probe.close()
        self.stream = self.probe = None

    def send(self, message: Upward) -> None:
        """Send to the master, if there is a stream; a new stream begins with everything."""
        if self.stream is not None:
            self.stream.send(message)

    def probes(self, pod: PodRecord, *, gone: bool) -> None:
        """Probe the nodes at once, if a pod's change may concern them."""
        if self.probe is not None:
            self.probe.changed(pod, gone=gone)

    def refusal(self, fence: Fence | None) -> str:
        """Return the reason to drop a master's message; empty: its sender is the known master."""
        refusal = self.known.refusal(fence)
        if not refusal:
            self.known = self.known.heard(fence)
        return refusal

    def started(self, epoch: int) -> None:
        """Note that a master of this epoch was started: older ones are given up."""
        self.known = self.known.started(epoch)

    def shows(self, pod: PodRecord) -> None:
        """Note a pod: a master that its node starts again has to be reached once more."""
        if pod.uid == self.view.speaker and not pod.serving and not self.view.connected:
            self.view = self.view.met("")
        if pod.slot.role is Role.MASTER and self.stream is not None:
            self.stream.hurry()
        if pod.slot.role is Role.MASTER and pod.ends and (pod.uid, pod.ends) != self.ends:
            self.ends = (pod.uid, pod.ends)
            self.known = self.known.ended()

    def receive(self, message: Said | None, now: float, pods: Iterable[PodRecord]) -> None:
        """Apply a message of the master; None: the stream to it has ended."""
        if message is None:
            self.view = self.view.disconnected(now)
            if self.met_at(pods) is None:
                # It was started again, and the pod shows that before the stream does.
                self.view = self.view.met("")
            return
        begins = not self.view.connected
        self.view = self.view.hear(message, now=now, version=self.spec_sent)
        if begins:
            self.view = self.view.met(_newest(pods))

    def met_at(self, pods: Iterable[PodRecord]) -> str | None:
        """Return the node of a master that was reached once and should be there; None: none."""
        if not self.view.speaker:
            return None
        spoke = (pod for pod in pods if pod.uid == self.view.speaker and pod.serving)
        return next((pod.node for pod in spoke), None)

    def answered(self, decision_id: int) -> None:
        """Note that the master's request for another size was answered."""
        self.view = self.view.answered(decision_id)

    def finds(self, reach: NodeReachability) -> frozenset[str]:
        """Note the nodes that answer nothing; return those that have changed."""
        changed = reach.unreachable ^ self.reach.unreachable
        self.reach = reach
        return changed

    def ask_to_stop(self, wish: StopRequest) -> None:
        """Ask the master to end the job; a master that comes later is asked too."""
        if self.stop is None:
            self.stop = wish
            self.send(wish)


def _newest(pods: Iterable[PodRecord]) -> str:
    """Return the uid of the pod behind the master's address; empty: it was not seen yet."""
    masters = [pod for pod in pods if pod.slot.role is Role.MASTER and not pod.deleting]
    newest = max(masters, key=lambda pod: pod.incarnation, default=None)
    return "" if newest is None else newest.uid
