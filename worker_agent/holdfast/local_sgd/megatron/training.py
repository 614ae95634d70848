"""EDiT and A-EDiT for Megatron-core, with and without its distributed optimizer.

```python
parallel_state.initialize_model_parallel(..., num_distributed_optimizer_instances=replicas)
model = DistributedDataParallel(config, ddp_config, gpt, pg_collection=replica_groups())
optimizer = get_megatron_optimizer(optimizer_config, [model])
local = MegatronLocalSGD([model], optimizer, LocalSGDConfig(local_sgd_sync_interval=16), outer)
```

Belongs here: Megatron's calls that a round or the warm-up stands on. Does not belong here: which
elements a rank synchronises (`parts`), the groups (`groups`), the round itself (`sync`).

In the *warm-up* `finish_grad_sync` averages what it has reduced inside the replica over all
replicas. Afterwards it does nothing more, so gradients are the mean of one replica's ranks.

A *round* runs in the hook that torch calls after the inner optimizer's step: on the masters, before
Megatron rounds these into the weights and gathers the weights. So both happen once, as ever. Where
a loss scaler leaves the step out, or a rank trains no parameter, it runs after `optimizer.step()`.

With A-EDiT (`by_time`) the first rank of a replica looks at the store there, and all its ranks
enter at one step. A step that a loss scaler has left out is none of the replica's steps then.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.leaves import Stateful
from holdfast.flash.trainer.shards import ReplicaShards, Shards, Together
from holdfast.integrations.megatron.owned_ranges import (
    end_gathers,
    optimizers_of,
    owned,
    write_weights,
)
from holdfast.integrations.megatron.shards import OBJECTS, OWNER, SCALERS, MegatronShards, owner_of
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.elastic import Carried
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.megatron.by_time import check_regroup, check_sync, turns_of
from holdfast.local_sgd.megatron.elastic import members_of, replicas_of, start
from holdfast.local_sgd.megatron.groups import (
    all_names,
    check_groups,
    own_data_parallel,
    own_ranks,
)
from holdfast.local_sgd.megatron.parts import Part, by_name, parts_of, put_together
from holdfast.local_sgd.megatron.refusals import check_model, check_settings, check_tensor_parallel
from holdfast.local_sgd.megatron.scheduler import carried
from holdfast.local_sgd.megatron.shards import MegatronRoundShards
from holdfast.local_sgd.megatron.warm_up import average_gradients
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.pipelined_round import log_batch
from holdfast.local_sgd.policies.schedule import (
    Boundary,
    Entry,
    Phase,
    boundary,
    is_due,
    phase,
)
from holdfast.local_sgd.sync.configured import outer_of, unit_sync_of
from holdfast.local_sgd.sync.group import TIMEOUT, Group
from holdfast.local_sgd.sync.unit_sync import Outcome
from holdfast.local_sgd.sync.units import Unit, check_equal
from holdfast.local_sgd.turns import Turns

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

log: Final = logging.getLogger("holdfast")


def local_sgd_of(optimizer: Any) -> MegatronLocalSGD:
    """Return what was made for an optimizer.

    Raises:
        LocalSGDError: nothing was.
    """
    found = find_local_sgd(optimizer)
    if found is None:
        raise LocalSGDError(
            f"optimizer: no MegatronLocalSGD was made for this {type(optimizer).__name__}: make "
            "one, or call patch_megatron_for_local_sgd() before get_megatron_optimizer()"
        )
    return found


def find_local_sgd(optimizer: Any) -> MegatronLocalSGD | None:
    """Return what was made for an optimizer; None: nothing was."""
    found = owner_of(optimizer)
    return found if isinstance(found, MegatronLocalSGD) else None


class MegatronLocalSGD:
    """Replicas of one model that step alone and agree on their masters in rounds."""

    steps: int
    """Calls of `optimizer.step` so far, those that a loss scaler left out too."""
    alone: int
    """Steps since the last round; with A-EDiT without those that a loss scaler left out."""
    together: bool
    """All replicas are at the end of one round here: a checkpoint has all of them."""
    turns: Turns | None
    """Rounds by time; None: rounds end by steps."""
    outcomes: list[Outcome]
    """Of the newest round, by parameter."""
    joined: bool
    """This replica came to others that train, and has their state: load no checkpoint."""

    def __init__(
        self,
        model_chunks: nn.Module | Sequence[nn.Module],
        optimizer: Any,
        config: LocalSGDConfig,
        outer: OuterOptimizerConfig | None = None,
        gta: GTAConfig | None = None,
        *,
        sync_ranks: dist.ProcessGroup | Members | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Register the hooks, and give all replicas the weights of the first; a collective.

        Args:
            model_chunks: Megatron's `DistributedDataParallel`, or the chunks of a virtual pipeline,
                built with `replica_groups()`.
            optimizer: What `get_megatron_optimizer` made of them.
            config: When replicas synchronise, and how.
            outer: The outer optimizer; None: none.
            gta: How deltas become one; None: their mean.
            sync_ranks: The ranks at this one's place in every replica; None: those of Megatron's
                groups. Where each replica has a world of its own, Megatron knows no others; members
                in their place may come and go.
            timeout: Seconds until a collective of a round has failed; members have their own.

        Raises:
            LocalSGDConfigError: settings contradict each other, or ask for what Megatron has not.
            LocalSGDError: the model does not fit; the message says what to change.
        """
        check_settings(config, outer, gta)
        given: Any = model_chunks
        self.chunks: list[Any] = list(given) if isinstance(given, Sequence) else [given]
        check_model(self.chunks, optimizer)
        check_groups(self.chunks)
        check_tensor_parallel(config, gta, self.chunks[0].tp_group.size())
        _refuse_second(optimizer)
        self.config, self.optimizer = config, optimizer
        self._data_parallel = own_data_parallel()
        self.shard_group = Group(own_ranks(), timeout=timeout)
        members, self.replicas = replicas_of(sync_ranks, self.shard_group, timeout)
        self.parts = by_name(parts_of(self.chunks, optimizer, self._data_parallel))
        self.units = [self._unit(name, outer) for name in self._names()]
        self._sync = unit_sync_of(
            config, gta, (self.replicas, self.shard_group), clip_scope="batch"
        )
        self.steps, self.alone, self._stepped, self._in_step = 0, 0, False, False
        self.outcomes, self.joined, self.together = [], False, False
        self.turns = turns_of(config, members, self.replicas, self.shard_group)
        self.are_fixed = members is None or not members.changes
        """Replicas neither come nor go, and one checkpoint has all of them."""
        self._members = None if members is None else members_of(self, members, self._sync)
        self._meet()
        self._undo = self._hook()

    @property
    def is_warming_up(self) -> bool:
        """Gradients are averaged over the replicas."""
        return phase(self.steps, self.config) is Phase.WARM_UP

    @property
    def trained(self) -> list[Part | None]:
        """This rank's part of each unit; None: other ranks of the replica have it alone."""
        return [self.parts.get(unit.name) for unit in self.units]

    @property
    def rounds(self) -> int:
        """Rounds so far, on all replicas alike; with A-EDiT the number to save under.

        Its replicas make unlike numbers of steps, so they save where `together` is true.
        """
        if self.turns is not None:
            return self.turns.turn.round
        lone = max(0, self.steps - self.config.local_sgd_warmup_steps)
        return lone // self.config.local_sgd_sync_interval

    def sync(self) -> None:
        """Synchronise now, such as before an export of the weights; all ranks call it.

        Raises:
            LocalSGDError: with A-EDiT, where replicas are apart: another may wait in a round.
            SyncError: a rank is gone.
        """
        if self.turns is not None:
            check_sync(is_apart=self._has_anchors and not self.together)
        elif self._members is not None:
            end_gathers(self.optimizer)
            self._end_round(self._members.sync_now())
            self._follow()
        elif self.alone:
            end_gathers(self.optimizer)
            self._round()
            self._follow()

    def finish(self, entered: Callable[[], object] | None = None) -> None:
        """End the training of this replica, which has no more data; its weights are the anchors.

        With A-EDiT it joins the others' rounds, without a weight, until no replica has data. With
        EDiT all replicas call it after the same step.

        Args:
            entered: Called after each of these rounds, where `together` is true and the others may
                save: a checkpoint needs all ranks. Does what the script's loop does there, and
                returns True where that ends.

        Raises:
            SyncError: a rank is gone.
        """
        if self.turns is None:
            self.sync()
            return
        if self.is_warming_up:
            return
        end_gathers(self.optimizer)
        if self._members is not None:
            self._members.finish(lambda outcomes: self._end_with(outcomes, entered))
            return
        if not self._has_anchors:  # it has made no step, and the others take theirs with it
            self._take_anchors()
        is_over = False
        while not is_over:
            entry = self.turns.exhausted()
            made = self._sync.run(self.units, steps=float(self.alone))
            is_over = self._end_with(made, entered) or entry is Entry.LAST

    def _end_with(self, outcomes: list[Outcome], entered: Callable[[], object] | None) -> bool:
        """End a round behind the last step; return whether the script ends here."""
        self._end_round(outcomes)
        self._follow()
        return bool(outcomes) and entered is not None and entered() is True

    def carry(self, name: str, one: Carried) -> None:
        """Give replicas that come later a scheduler's state, the place in the data, or the like.

        A replica that has come later takes that state at once. Fixed replicas have no need.

        Raises:
            LocalSGDError: the state is no plain data.
        """
        if self._members is not None:
            self._members.carry(name, carried(one, lambda: self._in_step))

    def shards(
        self,
        objects: Mapping[str, Stateful] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> Shards:
        """Return the whole training state for a `Checkpointer`: `shards=local.shards()`.

        Args:
            objects: As `MegatronShards` takes them, equal on all ranks; with A-EDiT on those of a
                replica, each of which has its own.
            constants: The same.
        """
        whole = MegatronShards(self.chunks, self.optimizer, objects, constants)
        shard = self.shard_group.rank
        number, count = 0, 1  # this replica's is whole by itself, whoever is there
        if self.are_fixed:
            number, count = self.replicas.rank, self.replicas.size
        more = (SCALERS,) if self.turns is None else (SCALERS, OBJECTS)
        replica = ReplicaShards(whole, number, shard=shard, more=more)
        return Together(replica, MegatronRoundShards(self, replica, (number, count)))

    @property
    def saves(self) -> bool:
        """This replica is to save: each of fixed ones, else the first, whose state all can load."""
        return self.are_fixed or self.replicas.rank == 0

    def regroup(self, sync_ranks: dist.ProcessGroup) -> None:
        """Go on with other replicas, after one was lost or has come; all members call it.

        After a `SyncError` in `optimizer.step()` call this and then `sync()`: the step was made,
        and its round follows with those that are left. It needs that the round has failed on all
        ranks of a replica. Where it has ended on some, start from a checkpoint.

        Args:
            sync_ranks: The ranks at this one's place in every replica that is there.

        Raises:
            LocalSGDError: with A-EDiT, whose replicas do not know which round the others enter.
        """
        check_regroup(self.config)
        self.replicas = Group(sync_ranks, timeout=self.replicas.timeout)
        self._sync.regroup(self.units, self.replicas, self.shard_group)

    def detach(self) -> None:
        """Remove the hooks; every replica goes on alone."""
        for undo in self._undo:
            undo()
        self._undo = []
        vars(self.optimizer).pop(OWNER, None)

    def clock(self) -> dict[str, Any]:
        """Return this replica's counters, for a checkpoint."""
        alone = self.alone if self._members is None else self._members.alone
        return {"steps": self.steps, "alone": alone, "rounds": self.rounds}

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters of a checkpoint."""
        self.steps, self.alone = clock["steps"], clock["alone"]
        self.together = not self.alone
        if self.turns is not None:
            self.turns.restart(self.alone, clock["rounds"])
        if self._members is not None:
            self._members.go_on_from(self.steps, None if self.turns is None else self.alone)

    def _meet(self) -> None:
        """Give all fixed replicas the first one's weights, or meet members and take theirs."""
        if self._members is None:
            self._warn_if_alone()
            self._broadcast()
            return
        end_gathers(self.optimizer)
        start(self, self._members)
        put_together(list(self.parts.values()), self._data_parallel)
        self._follow()

    def _warn_if_alone(self) -> None:
        if self.replicas.size == 1 and self.shard_group.rank == 0:
            log.warning(
                "local SGD: Megatron's groups have one replica, so nothing is exchanged; pass "
                "num_distributed_optimizer_instances=<replicas> to initialize_model_parallel"
            )

    def _names(self) -> list[str]:
        """Return the parameters of all ranks of the replica: these report on one another's."""
        device = next(self.chunks[0].parameters()).device
        return all_names(list(self.parts), self.shard_group, device)

    def _unit(self, name: str, outer: OuterOptimizerConfig | None) -> Unit:
        part = self.parts.get(name)
        tensors = (lambda: ()) if part is None else functools.partial(_one, part)
        is_copy = part is not None and part.is_copy
        return Unit(name, tensors, outer_of(self.config, outer), is_copy=is_copy)

    def _hook(self) -> list[Callable[[], None]]:
        """Register the hooks; return what removes them."""
        vars(self.optimizer)[OWNER] = self
        undo = [_override(self.optimizer, "step", self._step)]
        undo += [
            _override(chunk, "finish_grad_sync", functools.partial(self._finish_gradients, chunk))
            for chunk in self.chunks
        ]
        for one in optimizers_of(self.optimizer):
            undo.append(one.optimizer.register_step_post_hook(self._after_inner_step).remove)
        return undo

    def _finish_gradients(
        self, chunk: Any, finish: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Reduce a chunk's gradients inside the replica; in the warm-up, average over all."""
        result = finish(*args, **kwargs)
        if self.is_warming_up and self.replicas.size > 1:
            whole = bool(kwargs.get("force_all_reduce", args[0] if args else False))
            average_gradients(chunk, self._data_parallel, self.replicas, whole=whole)
        return result

    def _step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a step, and what follows it in the hook of the inner one."""
        if not self.is_warming_up and not self._has_anchors:
            self._take_anchors()
        self._stepped = self._in_step = self.together = False
        result = step(*args, **kwargs)
        if not self._stepped:
            end_gathers(self.optimizer)
            if self._after_step(is_made=bool(result[0])) is not Boundary.NOTHING:
                self._follow()
        return result

    def _after_inner_step(self, *_: Any) -> None:
        self._stepped = self._in_step = True
        self._after_step()
        self._in_step = False

    def _after_step(self, *, is_made: bool = True) -> Boundary:
        """Count a step, which a loss scaler may have left out; do what it ends, and return that."""
        follows = Boundary.NOTHING
        self.steps += 1
        if self._members is not None:
            ends = boundary(self.steps, self.config) is Boundary.ROUND
            counts, changes = is_made or self.turns is None, self._members.changes
            made = self._members.stepped(ends_round=ends, is_step=counts)
            if made is not None or changes != self._members.changes:
                follows = Boundary.ROUND
                self._end_round(made or [])
        elif boundary(self.steps, self.config) is Boundary.ANCHORS:
            follows = Boundary.ANCHORS
            self._take_anchors()
        elif phase(self.steps - 1, self.config) is Phase.LOCAL:
            self.alone += is_made or self.turns is None
            if self._ends_round(is_made=is_made):
                follows = Boundary.ROUND
                self._round()
        return follows

    def _ends_round(self, *, is_made: bool) -> bool:
        """Tell if a round follows this step, on all ranks of the replica alike."""
        if self.turns is None:
            return is_due(self.steps, self.config)
        return self.turns.stepped(is_made=is_made) is not Entry.SKIP

    @property
    def _has_anchors(self) -> bool:
        return all(unit.has_anchors for unit in self.units)

    def _round(self) -> None:
        self._end_round(self._sync.run(self.units, steps=float(self.alone)))

    def _end_round(self, outcomes: list[Outcome]) -> None:
        self.outcomes, self.alone, self.together = outcomes, 0, bool(outcomes)
        put_together(list(self.parts.values()), self._data_parallel)
        if self.replicas.rank == 0 and self.shard_group.rank == 0:
            log_batch(self.outcomes)

    def _take_anchors(self) -> None:
        """Take the masters for anchors, where all replicas are equal; a collective."""
        if self.steps:  # replicas have rounded the norms of their gradients each for itself
            self._share_masters()
        for unit in self.units:
            unit.take_anchors()
        check_equal(self.units, self.replicas)
        if self.turns is not None:
            self.turns.restart()  # the time begins with the first lone step

    def _broadcast(self) -> None:
        """Give all replicas the first one's weights."""
        if self.replicas.size == 1:
            return
        end_gathers(self.optimizer)
        self._share_masters()
        own = owned(self.optimizer).parameters
        for chunk in self.chunks:
            for one in chunk.parameters():
                if id(one) not in own:
                    self._share(one.detach())
        self._follow()

    def _share_masters(self) -> None:
        for part in self.parts.values():
            self._share(part.values())
        put_together(list(self.parts.values()), self._data_parallel)

    def _share(self, values: torch.Tensor) -> None:
        """Give all replicas the first one's values, as a sum with zeros.

        So the group has one holder, and closes its connections once `Group.close` is called.
        """
        if self.replicas.rank:
            values.zero_()
        self.replicas.begin_sum(values).wait()

    def _follow(self) -> None:
        """Have the weights follow masters that were changed outside the inner step."""
        write_weights(owned(self.optimizer), self.optimizer)

    def take_written(self) -> None:
        """Have the weights follow masters that a checkpoint's anchors were written to."""
        put_together(list(self.parts.values()), self._data_parallel)
        self._follow()


def _one(part: Part) -> Sequence[torch.Tensor]:
    return (part.values(),)


def _override(holder: Any, name: str, call: Callable[..., Any]) -> Callable[[], None]:
    """Put a call around one of an object's methods; return what takes it away."""
    original = getattr(holder, name)
    setattr(holder, name, functools.wraps(original)(functools.partial(call, original)))
    return lambda: vars(holder).pop(name, None)


def _refuse_second(optimizer: Any) -> None:
    if OWNER in vars(optimizer):
        raise LocalSGDError(
            f"optimizer: this {type(optimizer).__name__} has a MegatronLocalSGD: call detach() on "
            "it before another is made, since both would synchronise"
        )
