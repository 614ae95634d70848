"""Orders to one agent to end processes: those of a round, or all of them and itself."""

from __future__ import annotations

from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_wire.messages import Leave, LeaveOutcome, StopRound


def stop_round(
    out: OutgoingBatch, node: Node, round_number: int, reason: str, grace: float = 0.0
) -> None:
    """Have an agent end the processes of a round; grace: SIGTERM to SIGKILL, s."""
    if node.session is not None:
        number = out.command("stop", node.rank)
        message = StopRound(command_id=number, grace_seconds=grace, reason=reason)
        out.send(node, message, round_number)


def leave(out: OutgoingBatch, node: Node, outcome: LeaveOutcome, reason: str, grace: float) -> None:
    """Tell an agent to end its processes and itself."""
    if node.session is None:
        return
    number = out.command("leave", node.rank)
    message = Leave(command_id=number, grace_seconds=grace, reason=reason, outcome=outcome)
    out.send(node, message)
