"""EDiT and A-EDiT for Megatron-core, with and without its distributed optimizer.

```python
parallel_state.initialize_model_parallel(..., num_distributed_optimizer_instances=replicas)
model = DistributedDataParallel(config, ddp_config, gpt, pg_collection=replica_groups())
optimizer = get_megatron_optimizer(optimizer_config, [model])
local = MegatronLocalSGD([model], optimizer, LocalSGDConfig(local_sgd_sync_interval=16), outer)
```

Belongs here: Megatron's calls that a round or the warm-up stands on. Does not belong here: which
elements a rank synchronises (`parts`), the groups (`groups`), the course of a round (`driver`).

In the *warm-up* `finish_grad_sync` averages what it has reduced inside the replica over all
replicas. Afterwards it does nothing more, so gradients are the mean of one replica's ranks.

A *round* runs in the hook that torch calls after the inner optimizer's step: on the masters, before
Megatron rounds these into the weights and gathers the weights. So both happen once, as ever. Where
a loss scaler leaves the step out, or a rank trains no parameter, it runs after `optimizer.step()`.

With A-EDiT the first rank of a replica looks at the store there, and all its ranks
enter at one step. A step that a loss scaler has left out is none of the replica's steps then.

Where members come and go each replica is a Megatron world of its own: its default group, its
parallel state and its gradients know no other.
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
from holdfast.local_sgd.driver.framework import Framework
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.megatron.groups import (
    all_names,
    average_gradients,
    members_of,
    own_data_parallel,
)
from holdfast.local_sgd.megatron.parts import (
    MasterPart,
    MegatronRoundShards,
    by_name,
    parts_of,
    put_together,
)
from holdfast.local_sgd.megatron.refusals import (
    check_in_step,
    check_model,
    check_store,
)
from holdfast.local_sgd.megatron.scheduler import carried
from holdfast.local_sgd.members.members import Members
from holdfast.local_sgd.sync.configured import outer_of
from holdfast.local_sgd.sync.group import TIMEOUT
from holdfast.local_sgd.sync.inner_state import TorchInnerState
from holdfast.local_sgd.sync.unit_sync import Outcome
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

log: Final = logging.getLogger("holdfast")


def local_sgd_of(optimizer: Any) -> MegatronLocalSGD:
    """Return the local SGD of an optimizer.

    Raises:
        LocalSGDError: it has none.
    """
    found = find_local_sgd(optimizer)
    if found is None:
        raise LocalSGDError(
            f"optimizer: no MegatronLocalSGD was made for this {type(optimizer).__name__}: make "
            "one, or call patch_megatron_for_local_sgd() before get_megatron_optimizer()"
        )
    return found


def find_local_sgd(optimizer: Any) -> MegatronLocalSGD | None:
    """Return the local SGD of an optimizer; None: it has none."""
    found = owner_of(optimizer)
    return found if isinstance(found, MegatronLocalSGD) else None


class MegatronLocalSGD(Framework):
    """Replicas of one model that step alone and agree on their masters in rounds."""

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
        self.check_settings(config, outer, gta)
        given: Any = model_chunks
        self.chunks: list[Any] = list(given) if isinstance(given, Sequence) else [given]
        check_model(self.chunks, optimizer, config, gta)
        _refuse_second(optimizer)
        self.optimizer = optimizer
        self._data_parallel = own_data_parallel()
        who = members_of(sync_ranks, config, timeout)
        self.parts = by_name(parts_of(self.chunks, optimizer, self._data_parallel))
        names = all_names(list(self.parts), who.own)
        self.units = [self._unit(name, config, outer) for name in names]
        self.inner = TorchInnerState(self._slots, lambda: len(self.units), owned(optimizer).inner)
        self.inner.add_buffers(*self.chunks)
        self._stepped = self._in_step = self.together = False
        self.drive(config, gta, who, first=names[0])
        if not self.driver.when.in_step:
            check_store(who)
        self._meet()
        self._undo = self._hook()

    @property
    def trained(self) -> list[MasterPart | None]:
        """This rank's part of each unit; None: other ranks of the replica have it alone."""
        return [self.parts.get(unit.name) for unit in self.units]

    def sync(self) -> None:
        """Synchronise now, such as before an export of the weights; all ranks call it.

        Raises:
            LocalSGDError: with A-EDiT, where replicas are apart: another may wait in a round.
            SyncError: a rank is gone.
        """
        if self.driver.when.in_step:
            end_gathers(self.optimizer)
            super().sync()
        elif self.units[0].has_anchors and not self.together:
            check_in_step(
                self.driver.when,
                "sync",
                "replicas are at unlike steps, and one that has entered a round waits for the "
                "others: export where `together` is true, or after finish()",
            )

    def finish(self, entered: Callable[[], object] | None = None) -> None:
        """End the training of this replica; see `Framework.finish`. `together` is true then."""
        end_gathers(self.optimizer)
        super().finish(entered)

    def carry(self, name: str, one: Stateful) -> None:
        """Give replicas that come later the state of this; see `Framework.carry`."""
        if self.driver.who.meets:
            super().carry(name, carried(one, lambda: self._in_step))

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
        more = (SCALERS,) if self.driver.when.in_step else (SCALERS, OBJECTS)
        replica = ReplicaShards(whole, self.place[0], shard=self.shard_group.rank, more=more)
        return Together(replica, MegatronRoundShards(self, self.trained, replica))

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
        check_in_step(
            self.driver.when,
            "regroup",
            "the replicas that are left may count unlike rounds: restart the job from its newest "
            "checkpoint, or set use_async=False",
        )
        super().regroup(sync_ranks)

    def detach(self) -> None:
        """Remove the hooks; every replica goes on alone."""
        for undo in self._undo:
            undo()
        self._undo = []
        vars(self.optimizer).pop(OWNER, None)

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters of a checkpoint."""
        super().set_clock(clock)
        self.together = not self.alone

    def after_round(self, outcomes: list[Outcome]) -> None:
        """Have the weights follow the masters that a round has written."""
        super().after_round(outcomes)
        self.together = bool(outcomes)
        self.after_change()

    def after_change(self) -> None:
        """The same for a change; within the inner step Megatron itself writes the weights."""
        put_together(list(self.parts.values()), self._data_parallel)
        if not self._in_step:
            write_weights(owned(self.optimizer), self.optimizer)

    def inner_groups(self) -> list[Any]:
        """Groups of the inner optimizers."""
        return list(owned(self.optimizer).groups)

    def share_weights(self, source: int) -> None:
        """Give all replicas the masters of the one with this rank; `after_change` follows."""
        for part in self.parts.values():
            self._share(part.values(), source)

    def align(self) -> None:
        """Make fixed replicas equal: each has rounded the norms of its gradients for itself."""
        if self.are_fixed:
            if not self._in_step:
                end_gathers(self.optimizer)
            self.share_weights(0)
            self.after_change()

    def _meet(self) -> None:
        """Give all fixed replicas the first one's weights, or meet members and take theirs."""
        end_gathers(self.optimizer)
        if self.driver.who.meets:
            self.driver.start()
            self.after_change()
        elif self.replicas.size > 1:
            self.driver.start()
            own = owned(self.optimizer).parameters
            for chunk in self.chunks:
                for one in chunk.parameters():
                    if id(one) not in own:
                        self._share(one.detach(), 0)
            self.after_change()
        elif self.shard_group.rank == 0:
            log.warning(
                "local SGD: Megatron's groups have one replica, so nothing is exchanged; pass "
                "num_distributed_optimizer_instances=<replicas> to initialize_model_parallel"
            )

    def _unit(self, name: str, config: LocalSGDConfig, outer: OuterOptimizerConfig | None) -> Unit:
        part = self.parts.get(name)
        tensors = tuple if part is None else functools.partial(_one, part)
        is_copy = part is not None and part.is_copy
        return Unit(name, tensors, outer_of(config, outer), is_copy=is_copy)

    def _slots(self, number: int) -> list[Any]:
        part = self.trained[number]
        return [] if part is None else [part.owned.slot]

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
        self.driver.take_wanted_anchors()
        self._stepped = self.together = False
        result = step(*args, **kwargs)
        if not self._stepped:
            end_gathers(self.optimizer)
            self.driver.after_step(is_made=bool(result[0]))
        return result

    def _after_inner_step(self, *_: Any) -> None:
        self._stepped = self._in_step = True
        self.driver.after_step()
        self._in_step = False

    def _share(self, values: torch.Tensor, source: int) -> None:
        """Give all replicas one's values, as a sum with zeros.

        So the group has one holder, and closes its connections once `Group.close` is called.
        """
        if self.replicas.rank != source:
            values.zero_()
        self.replicas.begin_sum(values).wait()


def _one(part: MasterPart) -> Sequence[torch.Tensor]:
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
