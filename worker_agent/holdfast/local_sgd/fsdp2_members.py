"""Members that come and go under FSDP2: what a change does to a round that is under way.

Belongs here: counters and round of a `LocalSGD` after a change. Does not belong here: how a change
is carried out (`elastic`, `sync.regroup`), and the hooks themselves (`fsdp2`).

A forward that has gathered a unit goes on with what it has gathered: its backward needs the same
weights. So a whole round that is to be done again waits for the next forward. Units that this
forward has not reached may be done again in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.elastic import Elastic, attempt, inner_groups
from holdfast.local_sgd.errors import LocalSGDError, WarmUpError
from holdfast.local_sgd.fsdp2_units import ShardedUnit
from holdfast.local_sgd.inner_state import TorchInnerState
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.pipelined_round import PipelinedRound
from holdfast.local_sgd.policies.roster import Plan
from holdfast.local_sgd.policies.switching import NOTHING_AGREED
from holdfast.local_sgd.quorum_rounds import QuorumRounds
from holdfast.local_sgd.switch import RoundSwitch, Switch
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.regroup import Regrouped, Situation
from holdfast.local_sgd.sync.unit_sync import UnitSync
from holdfast.local_sgd.sync.units import Unit
from holdfast.local_sgd.turns import Turns

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


class Local(Protocol):
    """A `LocalSGD`, as far as its members go."""

    config: LocalSGDConfig
    model: nn.Module
    optimizers: list[Any]
    replicas: Group
    trained: list[ShardedUnit]
    units: list[Unit]
    steps: int
    alone: int
    tokens: int
    due: bool
    ends: bool
    joined: bool
    written: set[int]
    under_way: PipelinedRound | None
    turns: Turns | None
    quorum: QuorumRounds | None
    switch: Switch | None

    def share_weights(self, source: int = 0) -> None:
        """Give all replicas the weights of one."""

    def go_on_from(self, number: int) -> None:
        """Go on with the round that others have, from this unit."""

    def drop_round(self) -> None:
        """Take the round that is under way for done."""


class FSDP2Members:
    """The members of a `LocalSGD`, and the side of its hooks."""

    def __init__(self, local: Local, members: Members, sync: UnitSync) -> None:
        """Take the parts; nobody is met yet."""
        self._local, self.config = local, local.config
        sync.voters = members.shard_group if members.changes else None
        self._elastic = Elastic(members, sync, self, lambda: inner_groups(local.optimizers))
        self.carry = self._elastic.carry
        self.inner = TorchInnerState(self._slots, lambda: len(local.units))
        """Moments and buffers of this replica."""
        self.inner.optimizers = local.optimizers
        self.inner.add_buffers(local.model)
        self.changes = members.changes
        """Replicas may come and go."""
        self.changed = 0
        """Changes of members so far."""
        self.again = False
        """After the step that is under way, a round is due: the others have begun one."""
        self._last = 0
        """Number of the round with which the others have ended; 0: they go on."""
        self._late: Regrouped | None = None
        """Where the others stand, in a later forward: the next one here goes on from there."""

    @property
    def units(self) -> list[Unit]:
        """Those of the model."""
        return self._local.units

    def _slots(self, number: int) -> list[Any]:
        return [one.parameter for one in self._local.trained[number].trained]

    def situation(self, *, is_new: bool) -> Situation:
        """Return where this replica stands."""
        local = self._local
        return Situation(
            is_new=is_new,
            has_anchors=not is_new and bool(local.units) and local.units[0].has_anchors,
            due=local.due or self.again,
            steps=local.steps,
            ends=local.ends,
            begun=self._begun(),
            agreed=self._switch.agreed if self._switch is not None else NOTHING_AGREED,
        )

    @property
    def _switch(self) -> RoundSwitch | None:
        switch = self._local.switch
        return switch if isinstance(switch, RoundSwitch) else None

    def _begun(self) -> frozenset[int]:
        local = self._local
        if local.quorum is not None:
            return local.quorum.begun
        return frozenset() if local.under_way is None else local.under_way.begun

    def before_write(self, number: int) -> None:
        """Have the next forward gather anew."""
        self._local.trained[number].drop_gathered()
        self._local.written.add(number)

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of the one with this rank in the group."""
        self._local.replicas = self._elastic.group
        self._local.share_weights(source)

    def follow(self) -> None:
        """Carry out a change of members, at the start of a round or of the training.

        Raises:
            MembersError, SyncError: see `Elastic.refresh`.
        """
        if self._late is not None:
            self._go_on_with(self._late)
        found = self._elastic.refresh()
        if found is not None:
            self._apply(found)

    def attempt(self, call: Callable[..., object], *given: object) -> bool:
        """Return True after a call, and False where it failed and the members have changed.

        Raises:
            MembersError, SyncError: see `Elastic.recover`.
        """
        failed = attempt(lambda: call(*given))
        if failed is not None:
            if self._local.quorum is not None:
                self._local.quorum.leave()
            self._apply(self._elastic.recover(failed))
        return failed is None

    def _apply(self, found: Regrouped) -> None:
        """Bring counters and round to where the plan has brought the units."""
        local = self._local
        self.changed += 1
        local.replicas = self._elastic.group
        if found.joined:
            local.joined = True
            local.steps, local.due = found.steps, found.due
            local.alone = local.tokens = 0
        if found.passed and local.quorum is not None:
            local.alone, local.tokens = (round(one * found.kept) for one in self._work)
        elif found.plan is not None and local.quorum is None:
            self._apply_plan(found, found.plan)
        if local.turns is not None:
            self._move(local.turns, found)
        if self._switch is not None:
            self._switch.move(local.replicas, found.agreed, joined=found.joined)
        if local.quorum is not None:
            local.due = False
            local.quorum.move(local.replicas, self._elastic.epoch, found.plan, local.alone)

    def _apply_plan(self, found: Regrouped, plan: Plan) -> None:
        local = self._local
        kept = self._work
        units, again = len(local.units), plan.again
        at_start = local.due or found.joined
        in_forward = bool(again)
        if len(again) == units and (local.under_way is None or found.passed):
            local.drop_round()  # a whole round, of which this replica has begun no unit
            local.due, self.again, in_forward = at_start, not at_start, at_start
        elif again:
            local.go_on_from(again[0])
        else:
            local.drop_round()
            in_forward = at_start
        if found.passed:
            local.alone, local.tokens = (round(one * found.kept) for one in kept)
        if not found.behind:
            return
        if in_forward:
            self._go_on_with(found)
        else:  # the others wait at a round's start
            self._late, self.again = found, True

    def _go_on_with(self, found: Regrouped) -> None:
        """Go on from the others' step: they are in the same forward."""
        self._late, self._local.steps = None, found.steps
        self._elastic.take_position(found)
        if found.ends and found.plan is not None:
            self._last = found.plan.round + (not found.plan.again)

    @property
    def is_over(self) -> bool:
        """The others have ended with the newest round, which this replica began in a forward.

        The step of that forward is one more than they made.
        """
        return 0 < self._last == self.units[0].round

    @property
    def _work(self) -> tuple[int, int]:
        """Steps and tokens since the last round."""
        return self._local.alone, self._local.tokens

    def _move(self, turns: Turns, found: Regrouped) -> None:
        """Have the time of rounds go on with the new members.

        Who had entered a round of which nobody has begun a unit trains on, as the others do: these
        know nothing of that round.
        """
        local, plan = self._local, found.plan
        is_left_over = plan is not None and bool(plan.again)
        entered = local.due and not is_left_over
        if entered:
            local.due = False
        turns.move(
            local.replicas,
            self._elastic.epoch[1],
            plan.round if plan is not None else 0,
            0 if is_left_over else local.alone,
            starts=found.joined or is_left_over,
            is_due=entered and not found.joined,
        )

    def after_step(self) -> bool:
        """Return whether a round is due that the others have begun; once."""
        again, self.again = self.again, False
        return again


def groups_of(mesh: DeviceMesh | Members | None, timeout: float) -> tuple[Group, Group]:
    """Return the ranks that hold this rank's shards, and those of this replica.

    Raises:
        LocalSGDError: the mesh has another number of dimensions.
    """
    from torch.distributed.device_mesh import DeviceMesh

    if mesh is None:
        raise LocalSGDError("mesh=None: give a DeviceMesh, or members")
    if not isinstance(mesh, DeviceMesh):
        return Group.of_one(), mesh.shard_group
    if mesh.ndim != 2:
        raise LocalSGDError(
            f"mesh: it has {mesh.ndim} dimensions, expected two: replicas, and shards of a "
            'replica, as init_device_mesh(device, (N, M), mesh_dim_names=("replicate", "shard")) '
            "makes it; or give members, such as members_of_environment()"
        )
    return Group.like(mesh.get_group(0), timeout=timeout), Group(mesh.get_group(1), timeout=timeout)


def has_changed_of(mesh: DeviceMesh | Members | None) -> Callable[[], bool] | None:
    """Return what tells of a newer roster; None: fixed replicas have none."""
    found: Callable[[], bool] | None = getattr(mesh, "has_changed", None)
    return found


def members_of(
    local: Local, mesh: DeviceMesh | Members | None, sync: UnitSync
) -> FSDP2Members | None:
    """Return the side of a `LocalSGD` whose members may change; None: they are those of a mesh."""
    from torch.distributed.device_mesh import DeviceMesh

    if mesh is None or isinstance(mesh, DeviceMesh):
        return None
    return FSDP2Members(local, mesh, sync)


def average(gradient: torch.Tensor, local: Local) -> None:
    """Average a gradient of the warm-up over the members; raises WarmUpError."""
    try:
        local.replicas.begin_sum(gradient).wait()
    except SyncError as error:
        raise WarmUpError(
            f"local_sgd_warmup_steps={local.config.local_sgd_warmup_steps}: a replica was lost "
            f"after {local.steps} steps, while gradients were averaged over all replicas; start "
            "this replica again from the newest checkpoint, as the others do, or set "
            "local_sgd_warmup_steps=0"
        ) from error
    gradient.div_(local.replicas.size)
