"""Decisions of an earlier master, as its members remember them.

Belongs here: the record of a world or of replicas, from the hellos of all their nodes. Does not
belong here: which of them go on (`adoption`).
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_master.job.state.takeover_claims import Claimed
from holdfast_wire.messages import Hello, WorldDecided, WorldMember, WorldReplica


def world(top: tuple[int, str], members: Claimed) -> WorldDecided:
    """Return the decision of a world from the places of its members; `top`: its round and hash."""
    _, place = members[0]
    number, digest_hash = top
    return WorldDecided(
        group=0,
        round=number,
        members=tuple(_member(hello) for hello, _ in members),
        restart_count=place.restart_count,
        reason=place.reason,
        world_hash=digest_hash,
        store_host=place.store_host,
        keeps_checkpoints=place.keeps_checkpoints,
        intervals=place.intervals,
        store_port=place.store_port,
    )


def replicas(found: Mapping[int, Claimed]) -> WorldDecided:
    """Return the decision of a world of replicas, which began in rounds of their own."""
    told = tuple(_replica(number, members) for number, members in sorted(found.items()))
    nodes = [one for _, members in sorted(found.items()) for one in members]
    _, place = nodes[0]
    return WorldDecided(
        group=0,
        round=max(one.round for one in told),
        members=tuple(_member(hello) for hello, _ in nodes),
        restart_count=max(one.restart_count for _, one in nodes),
        reason="replicas that an earlier master had made",
        world_hash=place.world_hash,
        store_host=place.store_host,
        store_port=place.store_port,
        keeps_checkpoints=all(one.keeps_checkpoints for _, one in nodes),
        intervals=place.intervals,
        replicas=told,
    )


def _replica(number: int, members: Claimed) -> WorldReplica:
    hello, place = members[0]
    return WorldReplica(
        number=number,
        round=hello.round,
        nodes=len(members),
        store_host=place.store_host,
        store_port=place.store_port,
        world_hash=place.world_hash,
    )


def _member(hello: Hello) -> WorldMember:
    return WorldMember(
        node_rank=hello.node_rank,
        agent_id=hello.agent_id,
        local_world_size=hello.local_world_size,
    )
