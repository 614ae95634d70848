"""Notices that a node will be taken away, restarted or maintained: the node leaves as by a drain.

Time does not count: a node that will go leaves at once, be its end an hour away. The ranks save and
stop once in any case, and the sooner another node is asked for, the sooner it is there.
"""

from __future__ import annotations

from holdfast_master.job.nodes import liveness
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.wording import short
from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.messages import NoticeKind, NoticeReceived
from holdfast_wire.reasons import EventReason

_ENDS = {
    NoticeKind.PREEMPTION: "it will be taken away",
    NoticeKind.MAINTENANCE: "its host will be maintained, and the node ends or restarts",
}


def received(job: JobContext, node: Node, notice: NoticeReceived) -> None:
    """An agent, or the operator, has a notice about a node. Both repeat it to a new master.

    A notice that is withdrawn later changes nothing: the ranks have been told to stop.
    """
    leaves, reason = _judge(notice)
    text = f"node {node.rank}: {reason}{_source(notice)}"
    news = (notice.kind, notice.source, notice.text, notice.stays)
    if news != node.noticed:
        node.noticed = news
        job.out.warn(EventReason.NOTICE_RECEIVED, text, node=node.rank)
    if leaves:
        liveness.drain(job, node, EvidenceKind.PREEMPTED, text)


def _judge(notice: NoticeReceived) -> tuple[bool, str]:
    """Whether the node leaves at the next barrier, with the reason; else people are told only."""
    end = _ENDS.get(notice.kind)
    if end is None:
        return False, "this release does not know the notice's kind"
    if not notice.stays:
        return True, end
    if notice.kind is NoticeKind.MAINTENANCE:
        return False, "its host will be maintained; the node may pause, and stays"
    return False, "it may be taken away; nobody says that it will be"


def _source(notice: NoticeReceived) -> str:
    said = ": ".join(filter(None, (short(notice.source), short(notice.text))))
    left = f", {notice.seconds_left:.0f} s left" if notice.seconds_left > 0 else ""
    return f" ({said}{left})" if said or left else ""
