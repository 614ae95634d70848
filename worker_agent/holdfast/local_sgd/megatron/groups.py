"""Process groups of replicas under Megatron: blocks of its data parallel ranks.

Belongs here: which of Megatron's groups is a replica's, and the check that a model was built with
them. Does not belong here: what is sent in them (`training`).

`parallel_state` makes these groups for its own hybrid sharding, whose number of replicas is
`num_distributed_optimizer_instances`. An instance's ranks are a replica, and the ranks of all
instances at one place in theirs are the sync group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.driver.changing import ChangingMembers
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.frameworks.ddp import refuse_ddp_over_replicas
from holdfast.local_sgd.members.members import Members
from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def replica_groups() -> Any:
    """Return Megatron's groups with those of this replica for data parallelism.

    ```python
    parallel_state.initialize_model_parallel(..., num_distributed_optimizer_instances=replicas)
    model = DistributedDataParallel(config, ddp_config, gpt, pg_collection=replica_groups())
    optimizer = get_megatron_optimizer(optimizer_config, [model])
    ```

    So gradients are divided by the data parallel size of one replica, and reduced among its ranks.
    The optimizer takes the same groups by itself. `ddp_config` names one instance.

    Raises:
        LocalSGDError: this Megatron has no such groups.
    """
    from megatron.core import parallel_state

    try:
        from megatron.core.process_groups_config import ProcessGroupCollection
    except ImportError as error:
        raise LocalSGDError(
            "megatron-core: it has no ProcessGroupCollection; install megatron-core 0.16 or newer"
        ) from error
    groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "pp", "ep"])
    own = own_data_parallel()
    experts = parallel_state.get_expert_data_parallel_group(partial_expert_data_parallel=True)
    groups.dp = groups.dp_cp = groups.intra_dp_cp = own
    groups.expt_dp = groups.intra_expt_dp = experts
    return groups


def own_data_parallel() -> dist.ProcessGroup:
    """Return the data parallel ranks of this replica, those of context parallelism among them."""
    from megatron.core import parallel_state

    found: dist.ProcessGroup = parallel_state.get_data_parallel_group(
        with_context_parallel=True, partial_data_parallel=True
    )
    return found


def own_ranks() -> dist.ProcessGroup:
    """Return all ranks of this replica, of every kind of parallelism."""
    from megatron.core import parallel_state

    found: dist.ProcessGroup = parallel_state.get_intra_distributed_optimizer_instance_group()
    return found


def same_shard() -> dist.ProcessGroup | None:
    """Return the ranks at this one's place in every replica; None: there is one replica."""
    from megatron.core import parallel_state

    find = parallel_state.get_inter_distributed_optimizer_instance_group
    found: dist.ProcessGroup | None = find(check_initialized=False)
    return found


def own_sync_group() -> dist.ProcessGroup | None:
    """Make a group of the ranks of `same_shard`, by them alone; None: there is one replica.

    Megatron keeps its own for good, so nobody could close it to tell the others of a lost rank.
    """
    import torch.distributed as dist

    same = same_shard()
    if same is None:
        return None
    made: Any = dist.new_group(_ranks(same), use_local_synchronization=True)
    own: dist.ProcessGroup = made  # never the mark of a stranger: this rank is in it
    return own


def check_groups(chunks: Sequence[Any]) -> None:
    """Refuse a model whose gradients are reduced beyond its replica.

    Raises:
        LocalSGDError: says how to build it.
    """
    own = _ranks(own_data_parallel())
    for number, chunk in enumerate(chunks):
        found = _ranks(chunk.dp_cp_group)
        instances = chunk.ddp_config.num_distributed_optimizer_instances
        if found != own or instances != 1:
            raise LocalSGDError(
                f"model chunk {number} reduces its gradients among ranks {found}, in {instances} "
                f"instances; this replica has ranks {own}: build it with pg_collection="
                "replica_groups() and num_distributed_optimizer_instances=1 in its "
                "DistributedDataParallelConfig, or call patch_megatron_for_local_sgd() before"
            )
    _check_blocks(own)


def _check_blocks(own: list[int]) -> None:
    """Refuse groups that are other than this module says, as some layouts may cut them."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    every = _ranks(parallel_state.get_data_parallel_group(with_context_parallel=True))
    expected = every[own.index(dist.get_rank()) :: len(own)]
    same = same_shard()
    found = expected if same is None else _ranks(same)
    if found != expected or not set(own) <= set(_ranks(own_ranks())):
        raise LocalSGDError(
            f"num_distributed_optimizer_instances: ranks {found} are this rank's in all replicas, "
            f"and of the data parallel ranks {every} they should be {expected}: choose another "
            "order of parallelism, or as many ranks for experts' tensor parallelism as for others"
        )
    context = _ranks(parallel_state.get_context_parallel_group())
    if not set(context) <= set(own):
        raise LocalSGDError(
            f"num_distributed_optimizer_instances: a replica of data parallel ranks {own} has only "
            f"some of the context parallel ranks {context}: set fewer replicas"
        )


def all_names(own: Sequence[str], group: Group) -> list[str]:
    """Return the names that any rank of a group has, sorted; a collective."""
    import torch.distributed as dist

    found: list[Any] = [list(own)] * group.size
    if group.size > 1:
        dist.all_gather_object(found, list(own), group=group.ranks)
    return sorted({name for names in found for name in names})


def _ranks(group: Any) -> list[int]:
    import torch.distributed as dist

    return list(dist.get_process_group_ranks(group))


def average_gradients(chunk: Any, own: dist.ProcessGroup, replicas: Group, *, whole: bool) -> None:
    """Average a chunk's gradients over the replicas, once each has reduced its own.

    Args:
        chunk: Of the model.
        own: Data parallel ranks of this replica.
        replicas: The ranks that hold this rank's shards.
        whole: Each rank has all gradients, also with the distributed optimizer.

    Raises:
        SyncError: a rank is gone.
    """
    works = []
    for gradients in _reduced(chunk, own, whole=whole):
        gradients.mul_(1 / replicas.size)
        works.append(replicas.begin_sum(gradients))
    for work in works:
        work.wait()


def _reduced(chunk: Any, own: dist.ProcessGroup, *, whole: bool) -> list[torch.Tensor]:
    """Return the gradients that are right on this rank after a reduction inside the replica."""
    found = []
    for buffer in chunk.buffers:
        for bucket in buffer.buckets:
            gradients: torch.Tensor = bucket.grad_data
            if chunk.ddp_config.use_distributed_optimizer and not whole:
                gradients = gradients.chunk(own.size())[own.rank()]
            found.append(gradients)
    return found


def members_of(
    given: dist.ProcessGroup | Members | None, config: LocalSGDConfig, timeout: float
) -> FixedMembers:
    """Return the replicas: members, if they are given, else those of Megatron's groups.

    Raises:
        LocalSGDError: a replica of the members is not Megatron's.
        LocalSGDConfigError: the settings want what members have not.
    """
    import torch.distributed as dist

    own = Group(own_ranks(), timeout=timeout)
    if given is None or isinstance(given, dist.ProcessGroup):
        found = own_sync_group() if given is None else given
        group = Group.of_one() if found is None else Group(found, timeout=timeout)
        return FixedMembers(group, own)
    check_members(given, own)
    if given.changes:
        refuse_ddp_over_replicas(given, config)
    return ChangingMembers(given)


def check_members(members: Members, own: Group) -> None:
    """Refuse members whose replica is not Megatron's.

    Raises:
        LocalSGDError: names the ranks, and what to do.
    """
    if members.shard_group.size != own.size:
        raise LocalSGDError(
            f"members: their replica has {members.shard_group.size} ranks, Megatron's has "
            f"{own.size}: give each replica a world of its own, with "
            "num_distributed_optimizer_instances=1 and members of the same ranks"
        )
