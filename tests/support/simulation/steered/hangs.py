"""Hangs of a steered job: the world stands still, and the test answers for the agents.

Belongs here: the way to a hang, evidence of single ranks, what came of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob

ACT = wire.HealthPolicy(
    hang=wire.HangPolicy(
        mode=wire.HealthMode.ACT, step_time_factor=10.0, min_seconds=8.0, first_step_seconds=60.0
    )
)
PEERS = '  File "torch/distributed/distributed_c10d.py", line 1 in all_reduce'
WAITS = wire.RankEvidence(
    pid=1,
    process_state="S",
    observed_seconds=1.0,
    server_answered=True,
    gil_free=True,
    stack=PEERS,
)
STOPPED = wire.RankEvidence(pid=1, process_state="T", kernel_function="do_signal_stop")
STUCK = wire.RankEvidence(pid=1, process_state="D", kernel_function="nfs_wait_bit_killable")
GONE = wire.RankEvidence()
LOADS = dataclasses.replace(
    WAITS, stack='  File "/v/torch/utils/data/dataloader.py", line 1 in _try_get_data'
)
READS = dataclasses.replace(LOADS, moved_bytes=1 << 18)
SAVES = dataclasses.replace(
    WAITS, stack='  File "/v/torch/serialization.py", line 1 in _save', moved_bytes=1 << 18
)


def failures(job: SteeredJob) -> list[tuple[str, str]]:
    """Cause and culprit of what ended a world; what is only reported, or planned, did not."""
    incidents = job.core.goodput(job.moment()).incidents
    ended = [one for one in incidents if one.cause != "Rescaled" and not one.reported_only]
    return [(one.cause, one.culprit_node) for one in ended]


def asked(job: SteeredJob) -> wire.CollectEvidence:
    """Return the newest question for evidence."""
    return [sent for _, sent in job.sent if isinstance(sent, wire.CollectEvidence)][-1]


def stand_still(job: SteeredJob, *, pause: int = 0) -> wire.CollectEvidence:
    """Have the world stand still until all agents are asked; the test answers for them."""
    for agent in job.agents.values():
        agent.ignores = (*agent.ignores, wire.CollectEvidence)
    before = sum(isinstance(sent, wire.CollectEvidence) for _, sent in job.sent)
    workers = job.agents[pause].workers
    workers.pause(paused=True)
    workers.paused = False  # the processes of its next round run
    for _ in range(100):
        job.run(1.0)
        if sum(isinstance(sent, wire.CollectEvidence) for _, sent in job.sent) > before:
            return asked(job)
    raise AssertionError(job.tale())


def answer(
    job: SteeredJob,
    order: wire.CollectEvidence,
    odd: Mapping[int, wire.RankEvidence],
    operations: Mapping[int, str] = {},
) -> None:
    """Send each node's evidence; of those that are not named: waits for its peers.

    operations: what nodes issue last, where that is not what the others do.
    """
    everybody = tuple(range(len(job.members)))
    for rank, node in enumerate(job.members):
        operation = operations.get(node, "gloo:all_reduce")
        tails = (wire.GroupTail(group="0", ranks=everybody, sequence=9, operation=operation),)
        seen = dataclasses.replace(odd.get(node, WAITS), rank=rank, groups=tails)
        agent = job.agents[node]
        message = wire.EvidenceCollected(command_id=order.command_id, ranks=(seen,))
        agent.report(message, agent.accepted.round)
