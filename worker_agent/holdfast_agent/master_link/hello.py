"""Makes the hello: all that a master without memory has to know of this agent."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping

from holdfast.page import Page
from holdfast_agent.config.settings import Settings
from holdfast_agent.policies import exit_rules, rank_progress
from holdfast_agent.workers.rounds import Round
from holdfast_wire import __version__
from holdfast_wire.messages import ClassSeconds, Hello, OuterRoster, StateDigest, StorePrepared


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Self:
    """Properties of this agent process that never change."""

    agent_id: str
    address: str
    """IP at which other nodes reach this one."""
    peer_address: str
    devices: tuple[str, ...]
    unmanaged: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State that this agent keeps for a master, as it is now."""

    warm: bool
    round: int
    done_command_ids: tuple[int, ...]
    goodput: tuple[ClassSeconds, ...]
    digest: StateDigest | None
    store: StorePrepared | None
    roster: OuterRoster | None
    """The newest that the ranks were told; None: no replica of a roster runs here."""


def hello(
    settings: Settings, own: Self, memory: Memory, current: Round | None, page: Page
) -> Hello:
    """Return the present hello."""
    shown = current if current is not None and exit_rules.is_shown(current.orders) else None
    if shown is not None and shown.number != memory.round:
        shown = None  # a newer round is being prepared, and the master need not know the older
    seen = shown.ranks(page) if shown else {}
    return Hello(
        job_uid=settings.job_uid,
        node_rank=settings.node_rank,
        pod_uid=settings.pod_uid or own.agent_id,
        agent_id=own.agent_id,
        agent_pid=os.getpid(),
        host=socket.gethostname(),
        address=own.address,
        local_world_size=settings.launch.local_world_size,
        topology=settings.topology,
        devices=own.devices,
        version=__version__,
        warm=memory.warm,
        workers=current.running() if current is not None else (),
        round=memory.round,
        step=rank_progress.common_step(seen, shown.number) if shown else 0,
        done_command_ids=memory.done_command_ids,
        goodput=memory.goodput,
        digest=memory.digest,
        store=memory.store,
        assignment=dataclasses.replace(shown.assignment, roster=memory.roster) if shown else None,
        peer_address=own.peer_address,
        unmanaged=own.unmanaged,
        max_restarts=settings.launch.max_restarts,
        keeps_checkpoints=True,
        knows_goes_on=True,
        gathers=True,
        ended_at_barrier=rank_progress.ended_at_barrier(seen),
        barrier_id=shown.stop_barrier.barrier_id if shown and shown.stop_barrier else 0,
    )


def devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of this node's accelerators, without starting a CUDA context."""
    import torch

    if not torch.cuda.is_available():
        return ("cpu",)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(torch.cuda.device_count()))
    return tuple(f"cuda:{name}" for name in names)
