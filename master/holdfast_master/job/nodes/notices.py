"""Notices that a node will be taken away, restarted or maintained.

Belongs here: the node's announced departure, which takes the way of a drain. Does not belong here:
the meaning of a notice (`policies.notices`), the barrier and the next world (`rescale`, `worlds`).
"""

from __future__ import annotations

from holdfast_master.job.nodes import liveness
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.nodes import Node
from holdfast_master.job.state.outgoing_batch import Warn
from holdfast_master.job.state.wording import short
from holdfast_master.policies import notices
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.notices import Consequence
from holdfast_wire.messages import NoticeReceived
from holdfast_wire.reasons import EventReason


def received(job: JobContext, node: Node, notice: NoticeReceived) -> None:
    """An agent, or the operator, has a notice about a node. Both repeat it to a new master.

    A notice that is withdrawn later changes nothing: the ranks have been told to stop.
    """
    verdict = notices.judge(notice)
    text = f"node {node.rank}: {verdict.reason}{_source(notice)}"
    told = (notice.kind, notice.source, notice.text, notice.stays)
    if told != node.noticed:
        node.noticed = told
        job.out.event(EventReason.NOTICE_RECEIVED, text, Warn, node=node.rank)
    if verdict.consequence is Consequence.LEAVE:
        liveness.drain(job, node, EvidenceKind.PREEMPTED, text)


def _source(notice: NoticeReceived) -> str:
    said = ": ".join(filter(None, (short(notice.source), short(notice.text))))
    left = f", {notice.seconds_left:.0f} s left" if notice.seconds_left > 0 else ""
    return f" ({said}{left})" if said or left else ""
