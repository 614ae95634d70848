"""A-EDiT under Megatron: who may end rounds by time, and what such replicas cannot do.

Belongs here: the clock of a replica, and refusals by name. Does not belong here: what follows a
step (`training`), the clock itself (`turns`).

Between two rounds no rank may wait for another replica. One that has entered a round waits in it
for all others. One of these that waited for the first, in a collective of the script's own, would
never come. Megatron-LM's own `train_step` averages the loss over the default group: it is refused
where this has all replicas, and runs where each replica has a world of its own (members).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.turns import Turns

_TRAINING = "megatron.training.training"


def turns_of(
    config: LocalSGDConfig, members: Members | None, replicas: Group, own: Group
) -> Turns | None:
    """Return the clock of this rank's replica; None: rounds end by steps.

    Args:
        config: The settings.
        members: In the place of Megatron's groups, who meet in their rosters' stores; None:
            replicas are blocks of one world.
        replicas: The ranks at this one's place in every replica.
        own: All ranks of this replica, of every kind of parallelism.

    Raises:
        LocalSGDConfigError: replicas have no store in common.
    """
    import torch.distributed as dist

    if not config.use_async:
        return None
    if members is not None:
        return Turns(config, replicas, own, has_changed=members.has_changed)
    world, needed = dist.get_world_size(), replicas.size * own.size
    if world < needed:
        raise LocalSGDConfigError(
            f"use_async=True: {replicas.size} replicas of {own.size} ranks meet in the store of "
            f"the default group, which has {world} ranks: call init_process_group for all replicas "
            "and leave sync_ranks at None, or set use_async=False"
        )
    return Turns(config, replicas, own)


def check_sync(*, is_apart: bool) -> None:
    """Refuse a sync in the middle of a round by time.

    Raises:
        LocalSGDError: names where replicas are equal.
    """
    if is_apart:
        raise LocalSGDError(
            "sync: with use_async=True replicas are at unlike steps, and one that has entered a "
            "round waits for the others: export where `together` is true, or after finish()"
        )


def check_regroup(config: LocalSGDConfig) -> None:
    """Refuse other replicas in the middle of a training by time.

    Raises:
        LocalSGDError: says how to go on.
    """
    if config.use_async:
        raise LocalSGDError(
            "regroup: with use_async=True the replicas that are left may count unlike rounds: "
            "restart the job from its newest checkpoint, or set use_async=False"
        )


def refuse_own_loop() -> None:
    """Have Megatron-LM's own training step refuse to run, if its script has loaded it."""
    training: Any = sys.modules.get(_TRAINING)
    original = getattr(training, "train_step", None)
    if original is None:
        return

    @functools.wraps(original)
    def refuse(*_: Any, **__: Any) -> Any:
        raise LocalSGDError(
            "use_async=True: Megatron-LM's train_step averages the loss over all replicas, so one "
            "of them would wait there for another that waits in a round: write a loop of your own, "
            "without a collective over replicas, or set use_async=False"
        )

    training.train_step = refuse
