"""Answers about very large jobs still fit into one message."""

from __future__ import annotations

from holdfast_master.server.message_size import fitting
from holdfast_wire import codec, keys
from holdfast_wire.messages import ListNodesResponse, NodeInfo, RankInfo


def nodes(count: int, ranks: int) -> tuple[NodeInfo, ...]:
    """Return nodes as a real job has them."""
    return tuple(
        NodeInfo(
            node_rank=at,
            pod_uid="6f1e2d3c-0000-4000-8000-000000000000",
            host=f"host-{at}",
            ranks=tuple(
                RankInfo(
                    rank=at * ranks + local,
                    local_rank=local,
                    pid=1_000_000,
                    step=1_000_000,
                    step_seconds=0.1,
                    since_step_seconds=0.1,
                    loss=2.0,
                    section="TRAIN",
                    has_sdk=True,
                )
                for local in range(ranks)
            ),
        )
        for at in range(count)
    )


def test_ordinary_jobs_are_shown_whole() -> None:
    """Up to what fits, every rank is there."""
    for job in (nodes(3, 8), nodes(1_000, 8), nodes(2_000, 8)):
        assert fitting(job) == job


def test_of_a_huge_job_the_nodes_are_shown_without_their_ranks() -> None:
    """Ten thousand nodes of eight ranks would not fit; the nodes alone do."""
    job = nodes(10_000, 8)
    shown = fitting(job)
    assert [node.node_rank for node in shown] == [node.node_rank for node in job]
    assert not any(node.ranks for node in shown)
    size = len(codec.encode(ListNodesResponse(nodes=shown)))
    assert size < keys.MAX_MESSAGE_BYTES < len(codec.encode(ListNodesResponse(nodes=job)))
