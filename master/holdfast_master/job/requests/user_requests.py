"""Requests of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master.inputs import UserCall
from holdfast_master.instructions import RefusalCode
from holdfast_master.job.checkpoints import on_demand
from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import liveness, replacement
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.context import JobContext, PendingStacks
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.operator_view import PendingScale, is_over
from holdfast_master.job.state.phases import OVER
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import nodes_named, short
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import flush
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EndReason, EventReason

_SCALE_SECONDS = 30.0
_STACK_SECONDS = 10.0
_BACK = "; a restart of this node, or a scale, brings it back"


def asked(job: JobContext, event: UserCall) -> None:
    """A request; it is answered once, now or later."""
    request = event.request
    if job.state.phase in OVER and not isinstance(request, wire.StopJobRequest):
        text = f"the job is {job.state.phase.name.lower()}: {job.state.text}"
        job.out.refuse(event.request_id, "JOB_ENDED", text)
        return
    _HANDLERS[type(request)](job, event, request)


def _because(reason: str) -> str:
    text = short(reason)
    return f": {text}" if text else ""


# ----------------------------------------------------------------------------------------- scale


def _scale(job: JobContext, event: UserCall, request: wire.ScaleRequest) -> None:
    spec = job.spec
    # Only the operator knows whether minReplicas and maxReplicas were given or follow replicas, so
    # it judges them; its words reach the person.
    if request.replicas < 1:
        text = f"replicas {request.replicas} is not a number of nodes; it must be at least 1"
        code = RefusalCode.INVALID_ARGUMENT
        job.out.refuse(event.request_id, "REPLICAS_OUT_OF_BOUNDS", text, code)
        return
    if request.replicas == _asked_replicas(spec):
        text = _same_size(job, event, request)
        answer = wire.ScaleResponse(generation=spec.generation, text=text)
        job.out.reply(event.request_id, answer)
        return
    if not job.operator.connected:
        text = "no operator is connected, and only an operator changes the number of replicas"
        job.out.refuse(event.request_id, "NO_OPERATOR", text)
        return
    number = job.out.command("scale", 0)
    wish = PendingScale(event.request_id, request.replicas, number)
    job.operator.pending_scales[event.request_id] = wish
    job.timers.set(Timer.REQUEST, job.now + _SCALE_SECONDS, event.request_id)
    text = f"{event.who} asks for {counted(request.replicas, 'replica')}{_because(request.reason)}"
    job.out.event(EventReason.SCALE_REQUESTED, text)
    decision = wire.ScaleDecision(
        decision_id=number, replicas=request.replicas, reason=short(request.reason)
    )
    job.out.send_operator(decision)


def _asked_replicas(spec: wire.MasterSpec) -> int:
    """Return the nodes that the owner asks for, of which a queue may admit fewer."""
    return spec.asked_replicas or spec.replicas


def _same_size(job: JobContext, event: UserCall, request: wire.ScaleRequest) -> str:
    """The spec has that size: whoever asks for it wants drained nodes back; what follows."""
    number = request.replicas
    text = f"{counted(number, 'replica')} {verb(number, 'is', 'are')} wanted already"
    back = replacement.recall(job, f"{event.who} asks for them{_because(request.reason)}")
    if not back:
        return f"{text}; nothing changes"
    text = f"{text}; {nodes_named(back)} {verb(len(back), 'comes', 'come')} back"
    job.out.event(EventReason.SCALE_REQUESTED, text)
    return text


def scale_answered(job: JobContext, result: wire.ScaleResult) -> None:
    """The operator has taken a ScaleDecision, or not."""
    wishes = job.operator.pending_scales.values()
    wish = next((one for one in wishes if one.decision_id == result.decision_id), None)
    if wish is not None:
        wish.accepted = result.ok
        if not result.ok:
            text = result.error or "the operator refused without a reason"
            _refuse_scale(job, wish.request_id, "OPERATOR_REFUSED", text)
    spec_in_force(job)


def spec_in_force(job: JobContext) -> None:
    """A spec or an answer has come: whose wish is carried out now."""
    for number, wish in list(job.operator.pending_scales.items()):
        spec = job.spec
        if wish.accepted and _asked_replicas(spec) == wish.replicas:
            text = ""
            if spec.replicas < wish.replicas:
                wanted = f"{counted(wish.replicas, 'replica')} {verb(wish.replicas, 'is', 'are')}"
                text = f"{wanted} wanted; its queue admits {spec.replicas} for now"
            _end_scale(job, number)
            job.out.reply(number, wire.ScaleResponse(generation=spec.generation, text=text))


def _end_scale(job: JobContext, request_id: int) -> None:
    del job.operator.pending_scales[request_id]
    job.timers.cancel(Timer.REQUEST, subject=request_id)


def _refuse_scale(
    job: JobContext,
    request_id: int,
    reason: str,
    text: str,
    code: RefusalCode = RefusalCode.FAILED_PRECONDITION,
) -> None:
    _end_scale(job, request_id)
    job.out.refuse(request_id, reason, text, code)


def operator_gone(job: JobContext) -> None:
    """Nobody will answer what the operator was asked."""
    for number in list(job.operator.pending_scales):
        text = "the operator disconnected before it answered"
        _refuse_scale(job, number, "OPERATOR_GONE", text, RefusalCode.UNAVAILABLE)


def request_due(job: JobContext, request_id: int) -> None:
    """A user has waited long enough."""
    if request_id in job.operator.pending_scales:
        text = f"the operator did not carry it out within {_SCALE_SECONDS:g} s"
        _refuse_scale(job, request_id, "OPERATOR_SLOW", text, RefusalCode.DEADLINE_EXCEEDED)
    on_demand.request_due(job, request_id)
    call = job.pending_stacks.get(request_id)
    if call is not None:
        for rank in call.commands.values():
            call.answers.append(wire.NodeStacks(node_rank=rank, error="no answer in time"))
        call.commands.clear()
        _answer_stacks(job, call)


# --------------------------------------------------------------------------------------- restart


def _restart(job: JobContext, event: UserCall, request: wire.RestartWorkerRequest) -> None:
    world = job.worlds.running()
    if request.node_rank is not None:
        _restart_node(job, event, request.node_rank, request.reason)
        return
    if world is None:
        text = f"no round runs now ({job.state.phase.name.lower()}): {job.state.text}"
        job.out.refuse(event.request_id, "NO_ROUND", text)
        return
    text = f"{event.who} asks for a restart of all ranks{_because(request.reason)}"
    at_once = _why_at_once(job.membership, world)
    job.out.event(EventReason.RESTART_REQUESTED, f"{text}; {at_once}" if at_once else text)
    item = Evidence(kind=EvidenceKind.RESTART_ASKED, text=text, at=job.now)
    if at_once:
        incidents.report_process(job, item, world.round)
    else:
        _restart_together(job, world, item)
    job.out.reply(event.request_id, wire.RestartWorkerResponse(round=world.round))


def _restart_together(job: JobContext, world: World, item: Evidence) -> None:
    """Have all ranks save and stop; a barrier that is on its way ends in a new round as well."""
    if job.worlds.barrier is None:
        incidents.open_incident(job, item, world)
    if job.incidents.current is not None:
        # A successor must know what was granted, also where it hears of no barrier.
        job.out.record(job.incidents.current.fact(), durable=True)
    if job.worlds.barrier is None:
        barrier.stop(job, world, item.text, job.settings.barrier_seconds)


def _why_at_once(membership: Membership, world: World) -> str:
    """Return why a requested restart kills the ranks at once; empty: all of them save first."""
    if not world.training:
        return "at once: not all ranks have completed a step, so nothing is lost"
    problem = barrier.blind(membership, world)
    if problem:
        return f"at once, from the script's own checkpoint: {problem}"
    stalled = [node.rank for node in membership.present(world.places) if node.stalled]
    if stalled:
        return f"at once: node {stalled[0]} completes no step, so its ranks would not save"
    return ""


def _restart_node(job: JobContext, event: UserCall, rank: int, reason: str) -> None:
    pod = job.operator.pods.get(rank)
    if rank not in job.membership.nodes and pod is not None and is_over(pod):
        _bring_back(job, event, pod, reason)
        return
    node = _find(job, event, rank)
    if node is None:
        return
    text = f"{event.who} asks for a new agent of node {rank}{_because(reason)}"
    if not job.operator.connected:
        text = "no operator is connected that could replace a node"
        job.out.refuse(event.request_id, "NO_OPERATOR", text)
        return
    job.out.event(EventReason.RESTART_REQUESTED, text, node=rank)
    liveness.renew(job, node, text, text)
    job.out.reply(event.request_id, wire.RestartWorkerResponse(round=job.state.round))


def _bring_back(job: JobContext, event: UserCall, pod: wire.PodObservation, reason: str) -> None:
    """A node that was drained or has ended: another pod is to be made for its rank."""
    text = f"{event.who} wants node {pod.node_rank} back{_because(reason)}"
    if not job.operator.connected or not replacement.ask(job, pod.node_rank, pod.pod_uid, text):
        text = f"no operator is connected, or no rank {pod.node_rank} is wanted by the spec"
        job.out.refuse(event.request_id, "NOT_REPLACEABLE", text)
        return
    job.out.reply(event.request_id, wire.RestartWorkerResponse(round=job.state.round))


def _find(job: JobContext, event: UserCall, rank: int) -> Node | None:
    """The node that a request names; a request for an absent one is refused."""
    nodes = job.membership.nodes
    if rank not in nodes:
        known = ", ".join(map(str, sorted(nodes)[:20])) or "none"
        text = f"node_rank {rank} is not a present node; present are: {known}"
        job.out.refuse(event.request_id, "NO_SUCH_NODE", text, RefusalCode.NOT_FOUND)
    return nodes.get(rank)


# ----------------------------------------------------------------------------------------- drain


def _drain(job: JobContext, event: UserCall, request: wire.DrainNodeRequest) -> None:
    node = _find(job, event, request.node_rank)
    if node is None:
        return
    world, rank = job.worlds.newest, node.rank
    text = f"{event.who} drains node {rank}{_because(request.reason)}"
    liveness.drain(job, node, EvidenceKind.DRAINED, text)
    inside = world is not None and not job.worlds.broken and world.holds(rank, node.agent_id)
    if world is None or not inside:
        text = f"node {rank} is in no world and leaves at once{_BACK}"
    else:
        size = job.bounds.fit(len(job.membership.candidates - {rank}))
        few = "waiting for another node, too few are left"
        after = f"a world of {size}{_BACK}" if size else few
        alone = "with its replica, without a barrier"
        how = alone if world.replicas else "after a checkpoint barrier"
        text = f"node {rank} leaves {how}; then {after}"
    job.out.reply(event.request_id, wire.DrainNodeResponse(text=text))


# ---------------------------------------------------------------------------------------- stacks


def _stacks(job: JobContext, event: UserCall, request: wire.DumpStacksRequest) -> None:
    rank = request.node_rank
    if rank is not None and _find(job, event, rank) is None:
        return
    ranks = sorted(job.membership.nodes) if rank is None else [rank]
    call = PendingStacks(event.request_id)
    job.pending_stacks[event.request_id] = call
    job.out.event(EventReason.STACKS_REQUESTED, f"{event.who} asks for the stacks")
    for rank in ranks:
        node = job.membership.nodes[rank]
        if node.session is None:
            call.answers.append(wire.NodeStacks(node_rank=rank, error="its agent is not connected"))
            continue
        number = job.out.command("stacks", rank)
        call.commands[number] = rank
        job.out.send(node, wire.DumpStacks(command_id=number))
    job.timers.set(Timer.REQUEST, job.now + _STACK_SECONDS, event.request_id)
    _answer_stacks(job, call)


def stacks_arrived(job: JobContext, node: Node, message: wire.CommandDone) -> None:
    """A node's stacks, if that is what the command was."""
    for call in list(job.pending_stacks.values()):
        if call.commands.pop(message.command_id, None) is None:
            continue
        stacks = tuple(wire.StackText(rank=s.rank, pid=s.pid, text=s.text) for s in message.stacks)
        error = "" if message.ok else message.text or "the agent could not dump its stacks"
        call.answers.append(wire.NodeStacks(node_rank=node.rank, error=error, stacks=stacks))
        _answer_stacks(job, call)


def _answer_stacks(job: JobContext, call: PendingStacks) -> None:
    if call.commands:
        return
    del job.pending_stacks[call.request_id]
    job.timers.cancel(Timer.REQUEST, subject=call.request_id)
    nodes = tuple(sorted(call.answers, key=lambda answer: answer.node_rank))
    job.out.reply(call.request_id, wire.DumpStacksResponse(nodes=nodes))


# ------------------------------------------------------------------------------------------ stop


def _stop(job: JobContext, event: UserCall, request: wire.StopJobRequest) -> None:
    text = f"{event.who} stops the job{_because(request.reason)}"
    reason = EndReason.STOPPED_BY_USER
    job.request_end(succeeded=False, reason=reason, text=text, now=request.now)
    if request.now:
        flush.hurry(job)
    job.out.reply(event.request_id, wire.StopJobResponse())


_HANDLERS: dict[type, Callable[[JobContext, UserCall, Any], None]] = {
    wire.ScaleRequest: _scale,
    wire.RestartWorkerRequest: _restart,
    wire.DrainNodeRequest: _drain,
    wire.DumpStacksRequest: _stacks,
    wire.StopJobRequest: _stop,
    wire.TriggerCheckpointRequest: on_demand.asked,
}
