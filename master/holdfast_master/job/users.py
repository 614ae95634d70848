"""What users ask for.

Belongs here: one handler for each request, answered once. Does not belong here: reading requests
(views of `core`), which need no decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.inputs import Asked
from holdfast_master.instructions import RefusalCode, Refuse, Reply
from holdfast_master.job import incidents, losses, replacements, rescue, saving
from holdfast_master.job.desk import Desk
from holdfast_master.job.operator_view import is_over
from holdfast_master.job.roster import Node
from holdfast_master.job.state import RENEW
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED
from holdfast_master.job.waiting_requests import ScaleWish, StackCall
from holdfast_master.job.wording import short
from holdfast_wire.messages import (
    CommandDone,
    DrainNodeRequest,
    DrainNodeResponse,
    DumpStacks,
    DumpStacksRequest,
    DumpStacksResponse,
    JobPhase,
    NodeStacks,
    PodObservation,
    RestartWorkerRequest,
    RestartWorkerResponse,
    ScaleDecision,
    ScaleRequest,
    ScaleResponse,
    ScaleResult,
    StackText,
    StopJobRequest,
    StopJobResponse,
    TriggerCheckpointRequest,
)
from holdfast_wire.reasons import EndReason, EventReason

_SCALE_SECONDS = 30.0
_STACK_SECONDS = 10.0
_OVER = ENDED | {JobPhase.STOPPING}


def asked(desk: Desk, event: Asked) -> None:
    """A request; it is answered once, now or later."""
    request = event.request
    if desk.state.phase in _OVER and not isinstance(request, StopJobRequest):
        text = f"the job is {desk.state.phase.name.lower()}: {desk.state.text}"
        _refuse(desk, event, RefusalCode.FAILED_PRECONDITION, "JOB_ENDED", text)
        return
    _HANDLERS[type(request)](desk, event, request)


def _refuse(desk: Desk, event: Asked, code: RefusalCode, reason: str, text: str) -> None:
    desk.put(Refuse(event.request_id, code, reason, text))


def _because(reason: str) -> str:
    text = short(reason)
    return f": {text}" if text else ""


# ----------------------------------------------------------------------------------------- scale


def _scale(desk: Desk, event: Asked, request: ScaleRequest) -> None:
    spec = desk.spec
    # Only the operator knows whether minReplicas and maxReplicas were given or follow replicas, so
    # it judges them; its words reach the person.
    if request.replicas < 1:
        text = f"replicas {request.replicas} is not a number of nodes; it must be at least 1"
        _refuse(desk, event, RefusalCode.INVALID_ARGUMENT, "REPLICAS_OUT_OF_BOUNDS", text)
        return
    if request.replicas == spec.replicas:
        desk.put(Reply(event.request_id, ScaleResponse(generation=spec.generation)))
        return
    if not desk.operator.connected:
        text = "no operator is connected, and only an operator changes the number of replicas"
        _refuse(desk, event, RefusalCode.FAILED_PRECONDITION, "NO_OPERATOR", text)
        return
    number = desk.command("scale", 0)
    wish = ScaleWish(event.request_id, request.replicas, number)
    desk.operator.scale_wishes.append(wish)
    desk.timers.set(Timer.REQUEST, desk.now + _SCALE_SECONDS, event.request_id)
    text = f"{event.who} asks for {request.replicas} replicas{_because(request.reason)}"
    desk.event(EventReason.SCALE_REQUESTED, text)
    told = ScaleDecision(
        decision_id=number, replicas=request.replicas, reason=short(request.reason)
    )
    desk.tell(told)


def scale_answered(desk: Desk, result: ScaleResult) -> None:
    """The operator has taken a ScaleDecision, or not."""
    for wish in list(desk.operator.scale_wishes):
        if wish.decision_id != result.decision_id:
            continue
        if result.ok:
            wish.accepted = True
        else:
            _end_wish(desk, wish)
            text = result.error or "the operator refused without a reason"
            code = RefusalCode.FAILED_PRECONDITION
            desk.put(Refuse(wish.request_id, code, "OPERATOR_REFUSED", text))
    spec_in_force(desk)


def spec_in_force(desk: Desk) -> None:
    """A spec or an answer has come: whose wish is carried out now."""
    for wish in list(desk.operator.scale_wishes):
        if wish.accepted and desk.spec.replicas == wish.replicas:
            _end_wish(desk, wish)
            response = ScaleResponse(generation=desk.spec.generation)
            desk.put(Reply(wish.request_id, response))


def _end_wish(desk: Desk, wish: ScaleWish) -> None:
    desk.operator.scale_wishes.remove(wish)
    desk.timers.cancel(Timer.REQUEST, wish.request_id)


def operator_gone(desk: Desk) -> None:
    """Nobody will answer what the operator was asked."""
    for wish in list(desk.operator.scale_wishes):
        _end_wish(desk, wish)
        text = "the operator disconnected before it answered"
        desk.put(Refuse(wish.request_id, RefusalCode.UNAVAILABLE, "OPERATOR_GONE", text))


def request_due(desk: Desk, request_id: int) -> None:
    """A user has waited long enough."""
    for wish in list(desk.operator.scale_wishes):
        if wish.request_id == request_id:
            _end_wish(desk, wish)
            text = f"the operator did not carry it out within {_SCALE_SECONDS:g} s"
            code = RefusalCode.DEADLINE_EXCEEDED
            desk.put(Refuse(request_id, code, "OPERATOR_SLOW", text))
    saving.request_due(desk, request_id)
    call = desk.calls.get(request_id)
    if call is not None:
        for rank in call.commands.values():
            call.answers.append(NodeStacks(node_rank=rank, error="no answer in time"))
        call.commands.clear()
        _answer_stacks(desk, call)


# --------------------------------------------------------------------------------------- restart


def _restart(desk: Desk, event: Asked, request: RestartWorkerRequest) -> None:
    world = desk.running()
    if request.node_rank is not None:
        _restart_node(desk, event, request.node_rank, request.reason)
        return
    if world is None:
        text = f"no round runs now ({desk.state.phase.name.lower()}): {desk.state.text}"
        _refuse(desk, event, RefusalCode.FAILED_PRECONDITION, "NO_ROUND", text)
        return
    text = f"{event.who} asks for a restart of all ranks{_because(request.reason)}"
    desk.event(EventReason.RESTART_REQUESTED, text)
    item = Evidence(kind=EvidenceKind.RESTART_ASKED, text=text, at=desk.now)
    incidents.report_process(desk, item, world.round)
    desk.put(Reply(event.request_id, RestartWorkerResponse(round=world.round)))


def _restart_node(desk: Desk, event: Asked, rank: int, reason: str) -> None:
    pod = desk.operator.pods.get(rank)
    if rank not in desk.roster.nodes and pod is not None and is_over(pod):
        _bring_back(desk, event, pod, reason)
        return
    node = _find(desk, event, rank)
    if node is None:
        return
    text = f"{event.who} asks for a new agent of node {rank}{_because(reason)}"
    if not desk.operator.connected:
        text = "no operator is connected that could replace a node"
        _refuse(desk, event, RefusalCode.FAILED_PRECONDITION, "NO_OPERATOR", text)
        return
    # The operator is asked once the others go on without it: see steering.
    node.replace_why = text
    desk.command(RENEW, rank, durable=True)
    desk.event(EventReason.RESTART_REQUESTED, text, node=rank)
    losses.drain(desk, node, EvidenceKind.DRAINED, text)
    desk.put(Reply(event.request_id, RestartWorkerResponse(round=desk.state.round)))


def _bring_back(desk: Desk, event: Asked, pod: PodObservation, reason: str) -> None:
    """A node that was drained or has ended: another pod is to be made for its rank."""
    text = f"{event.who} wants node {pod.node_rank} back{_because(reason)}"
    if not desk.operator.connected or not replacements.ask(desk, pod.node_rank, pod.pod_uid, text):
        text = f"no operator is connected, or no rank {pod.node_rank} is wanted by the spec"
        _refuse(desk, event, RefusalCode.FAILED_PRECONDITION, "NOT_REPLACEABLE", text)
        return
    desk.put(Reply(event.request_id, RestartWorkerResponse(round=desk.state.round)))


def _find(desk: Desk, event: Asked, rank: int) -> Node | None:
    node = desk.roster.nodes.get(rank)
    if node is None:
        known = ", ".join(str(number) for number in sorted(desk.roster.nodes)[:20]) or "none"
        text = f"node_rank {rank} is not a present node; present are: {known}"
        _refuse(desk, event, RefusalCode.NOT_FOUND, "NO_SUCH_NODE", text)
    return node


# ----------------------------------------------------------------------------------------- drain


def _drain(desk: Desk, event: Asked, request: DrainNodeRequest) -> None:
    node = _find(desk, event, request.node_rank)
    if node is None:
        return
    world = desk.world
    rank = node.rank
    losses.drain(
        desk,
        node,
        EvidenceKind.DRAINED,
        f"{event.who} drains node {rank}{_because(request.reason)}",
    )
    inside = world is not None and not desk.broken and world.holds(rank, node.agent_id)
    if not inside:
        text = f"node {rank} is in no world and leaves at once"
    else:
        others = len(desk.roster.candidates - {rank})
        size = desk.bounds.fit(others)
        after = f"a world of {size}" if size else "waiting for another node, too few are left"
        text = f"node {rank} leaves after a checkpoint boundary; then {after}"
    desk.put(Reply(event.request_id, DrainNodeResponse(text=text)))


# ---------------------------------------------------------------------------------------- stacks


def _stacks(desk: Desk, event: Asked, request: DumpStacksRequest) -> None:
    if request.node_rank is not None and _find(desk, event, request.node_rank) is None:
        return
    ranks = sorted(desk.roster.nodes) if request.node_rank is None else [request.node_rank]
    call = StackCall(event.request_id)
    desk.calls[event.request_id] = call
    desk.event(EventReason.STACKS_REQUESTED, f"{event.who} asks for the stacks")
    for rank in ranks:
        node = desk.roster.nodes[rank]
        if node.session is None:
            call.answers.append(NodeStacks(node_rank=rank, error="its agent is not connected"))
            continue
        number = desk.command("stacks", rank)
        call.commands[number] = rank
        desk.send(node, DumpStacks(command_id=number))
    desk.timers.set(Timer.REQUEST, desk.now + _STACK_SECONDS, event.request_id)
    _answer_stacks(desk, call)


def stacks_arrived(desk: Desk, node: Node, message: CommandDone) -> None:
    """A node's stacks, if that is what the command was."""
    for call in list(desk.calls.values()):
        if call.commands.pop(message.command_id, None) is None:
            continue
        stacks = tuple(StackText(rank=s.rank, pid=s.pid, text=s.text) for s in message.stacks)
        error = "" if message.ok else message.text or "the agent could not dump its stacks"
        call.answers.append(NodeStacks(node_rank=node.rank, error=error, stacks=stacks))
        _answer_stacks(desk, call)


def _answer_stacks(desk: Desk, call: StackCall) -> None:
    if call.commands:
        return
    del desk.calls[call.request_id]
    desk.timers.cancel(Timer.REQUEST, call.request_id)
    nodes = tuple(sorted(call.answers, key=lambda answer: answer.node_rank))
    desk.put(Reply(call.request_id, DumpStacksResponse(nodes=nodes)))


# ------------------------------------------------------------------------------------------ stop


def _stop(desk: Desk, event: Asked, request: StopJobRequest) -> None:
    text = f"{event.who} stops the job{_because(request.reason)}"
    reason = EndReason.STOPPED_BY_USER
    desk.request_end(succeeded=False, reason=reason, text=text, now=request.now)
    if request.now:
        rescue.hurry(desk)
    desk.put(Reply(event.request_id, StopJobResponse()))


_HANDLERS: dict[type, Callable[[Desk, Asked, Any], None]] = {
    ScaleRequest: _scale,
    RestartWorkerRequest: _restart,
    DrainNodeRequest: _drain,
    DumpStacksRequest: _stacks,
    StopJobRequest: _stop,
    TriggerCheckpointRequest: saving.asked,
}
