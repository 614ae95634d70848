"""EDiT for DistributedDataParallel: an averager and an optimizer around the script's own.

Belongs here: when a DDP model's tensors agree, and their state in the optimizer's state. Does not
belong here: how they agree (`sync`).

```python
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState, post_localSGD_hook,
)
from holdfast.local_sgd.ddp import OuterOptimPeriodicModelAverager, StatefulPostLocalSGDOptimizer

state = PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=100,
                          post_local_gradient_allreduce=False)
model.register_comm_hook(state, post_localSGD_hook)
averager = OuterOptimPeriodicModelAverager(local_sgd_config=config, outer_optim_config=outer)
optim = StatefulPostLocalSGDOptimizer(optim=optim, averager=averager)
```

Each parameter is a unit, with a detector and weights of its own; clipping takes the norm of all
together. All units go in one transfer. For the first W steps DDP reduces gradients as ever
(`start_localSGD_iter` counts backward passes that reduce, and must end with these W steps). Then
the anchors are taken, and after each H steps more a round follows. By time (A-EDiT, `use_async`) a
round follows the step in which some replica's time is up; call `finish()` at the end of the data.

`state_dict()` is the state of one rank, and communicates nothing. Each rank that resumes from its
own goes on exactly. With rank 0's on all ranks, as is usual with DDP, anchors, momentum and
detectors of all replicas are exact; weights and inner state are rank 0's, and what a codec lost
elsewhere is lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.ddp_members import (
    check_settings,
    flat_of,
    members_and_group,
    members_of,
    refuse_more,
    turns_of,
)
from holdfast.local_sgd.ddp_shards import shards_of
from holdfast.local_sgd.elastic import Carried
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.pipelined_round import log_batch
from holdfast.local_sgd.policies.schedule import Boundary, Entry, Phase, boundary, phase
from holdfast.local_sgd.spanning import SpanningCollectives, spanning
from holdfast.local_sgd.switch import load, reducing, round_switch_of, saved
from holdfast.local_sgd.sync.configured import outer_of, unit_sync_of
from holdfast.local_sgd.sync.group import TIMEOUT, Group
from holdfast.local_sgd.sync.unit_sync import Outcome
from holdfast.local_sgd.sync.units import Unit, check_equal

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

    from holdfast.flash.trainer.shards import Shards

_COMPARED: Final = 3
"""Steps of each process in which DDP may compare its buckets over all ranks."""
_HINT: Final = (
    ". Or they have parted in the warm-up: start_localSGD_iter counts backward passes that reduce, "
    "so under gradient accumulation wrap all but the last micro-batch in model.no_sync()"
)


class OuterOptimPeriodicModelAverager:
    """Rounds of a DDP model, counted in steps of its optimizer; one of torch's `ModelAverager`."""

    def __init__(
        self,
        process_group: dist.ProcessGroup | Members | None = None,
        local_sgd_config: LocalSGDConfig | None = None,
        gta_config: GTAConfig | None = None,
        outer_optim_config: OuterOptimizerConfig | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Take the settings.

        Args:
            process_group: The replicas; None: the default group. Members may come and go: each
                replica is then one process group of its own, with DDP inside it.
            local_sgd_config: W, H and the rest; None: its defaults.
            gta_config: The reducer; None: the weighted mean.
            outer_optim_config: The outer optimizer; None: plain averaging.
            timeout: Seconds until a collective of a round has failed; members have their own.

        Raises:
            LocalSGDConfigError: settings contradict each other, or ask for what DDP has not.
        """
        self.config = local_sgd_config if local_sgd_config is not None else LocalSGDConfig()
        self.step = 0
        """Steps of the optimizer so far."""
        self._alone, self._due = 0, False
        self._params: list[Any] = []
        self.outcomes: list[Outcome] = []
        """Of the last round, by parameter."""
        check_settings(self.config, outer_optim_config, gta_config)
        self._outer = outer_of(self.config, outer_optim_config)
        self.joined = False
        """This replica came to others that train, and has their state: load no checkpoint."""
        members, self.group = members_and_group(process_group, timeout)
        self._spanning = self._look_for_spanning() if members is None else None
        self.own = Group.of_one() if members is None else members.shard_group
        """The ranks of this replica."""
        self.are_fixed = members is None or not members.changes
        """Replicas neither come nor go, and one checkpoint has all of them."""
        groups = (self.group, Group.of_one())
        self._sync = unit_sync_of(self.config, gta_config, groups, clip_scope="batch", whole=True)
        self.switch = round_switch_of(self.config, self._sync, self.own, _name(0))
        """The choice of the interval, where the settings ask for it."""
        self.units: list[Unit] = []
        """In the order of the optimizer's parameters; those without anchors are not here."""
        self.turns = turns_of(self.config, self.group, members)
        """Rounds by time that all replicas enter."""
        self._members = members_of(self, members, self._sync, turns=self.turns, switch=self.switch)

    @property
    def alone(self) -> int:
        """Steps of this replica since the last round."""
        return self._alone if self._members is None else self._members.alone

    @property
    def rounds(self) -> int:
        """Rounds so far, on all replicas alike: by time all save where it has grown."""
        return max((unit.round for unit in self.units), default=0)

    @property
    def saves(self) -> bool:
        """This replica is to save: each of fixed ones, else the first, whose state all can load."""
        return self.are_fixed or self.group.rank == 0

    def start(self, params: Iterable[Any], inner: torch.optim.Optimizer | None = None) -> None:
        """Meet the members, where the averager has `Members`: before the first step, once.

        Args:
            params: Groups of the optimizer, whose learning rates a joiner takes.
            inner: The optimizer, whose state a joiner takes; None: it begins with a fresh one.

        Raises:
            MembersError, SyncError: none came, or a rank of this replica is gone.
        """
        self._params = params = list(params)
        if self._members is not None and not self._members.is_started:
            self._members.start(params, *(() if inner is None else (inner,)))
            if self.are_fixed:  # their rounds have groups of their own
                self._spanning = self._look_for_spanning(own=True)

    def carry(self, name: str, one: Carried) -> None:
        """Give replicas that come later a scheduler's state, the place in the data, or the like.

        A replica that has come later takes that state at once. Fixed replicas have no need.

        Raises:
            LocalSGDError: the state is no plain data.
        """
        if self._members is not None:
            self._members.carry(name, one)

    def carry_buffers(self, model: nn.Module) -> None:
        """Give replicas that come later the buffers of a model, such as BatchNorm's statistics.

        The averager knows the parameters only. A replica that has come later takes them at once.
        Fixed replicas have no need.
        """
        if self._members is not None:
            self._members.inner.add_buffers(model)

    def make_units(self, params: Iterable[Any]) -> None:
        """Make a unit of each parameter, without anchors yet."""
        self.units = [self._unit(number, one) for number, one in enumerate(flat_of(params))]

    def before_step(self, params: Iterable[Any]) -> None:
        """Take anchors if the next step is the first local one; call it before that step.

        Raises:
            AnchorsDifferError: the replicas have different weights.
        """
        params = list(params)  # it may be a generator
        self.start(params)
        self._make_due_round()
        if phase(self.step, self.config) is Phase.LOCAL:
            self._take_anchors(params)

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Count a step, and make the round that it ends, if it does.

        Args:
            params: Parameters, or the groups of an optimizer, in the same order each time.

        Raises:
            SyncError: a replica is gone; the weights are as this replica's steps left them.
        """
        params = list(params)
        in_warm_up = phase(self.step, self.config) is Phase.WARM_UP
        if self._spanning is not None:
            self._spanning.before_count(self._alone)
        self.step += 1
        self._alone += not in_warm_up
        follows = self._follows(in_warm_up=in_warm_up)
        if self._members is not None:
            is_due = follows is Boundary.ROUND
            made = None if in_warm_up else self._members.stepped(ends_round=is_due)
            if made is not None:
                self._keep(made)
        elif follows is Boundary.ROUND or (not in_warm_up and self._has_entered()):
            with reducing(self.switch):
                self._round(len(flat_of(params)))
        if follows is Boundary.ANCHORS:
            self._take_anchors(params)
        if self._spanning is not None:
            self._spanning.after_count()

    def _look_for_spanning(self, *, own: bool = False) -> SpanningCollectives | None:
        return spanning(self.group, by_time=self.config.use_async, own=own, skips=_COMPARED)

    def _follows(self, *, in_warm_up: bool) -> Boundary:
        """Return what follows the step that was counted last; by time nothing does."""
        if self.switch is None:
            return boundary(self.step, self.config)
        if in_warm_up:
            self.switch.went_on()
            return boundary(self.step, self.config)
        return Boundary.ROUND if self.switch.stepped(self.step) else Boundary.NOTHING

    def finish(self, entered: Callable[[], object] | None = None) -> None:
        """End the training of this replica, which has no more data; its weights are the anchors.

        With A-EDiT it joins the others' rounds, without a weight, until no replica has data. With
        EDiT all replicas call it after the same step.

        Args:
            entered: Called after each of these rounds, as the others' scripts go on from a step
                then: does what they do there together, such as a save of all ranks. Returns True
                where they end, such as after SAVE_AND_STOP.

        Raises:
            SyncError: a replica is gone.
        """
        if phase(self.step, self.config) is Phase.LOCAL and self._params:
            self.before_step(self._params)  # what would have come before a further step
        if not self.units or not self.units[0].has_anchors:
            return
        if self._members is not None:
            self._members.finish(lambda outcomes: self._made(outcomes, entered))
            return
        if self.turns is None:
            if self._alone:
                self._finish_round(entered)
            return
        is_over = False
        while not is_over:
            entry = self.turns.exhausted()
            is_over = self._finish_round(entered) or entry is Entry.LAST

    def _finish_round(self, entered: Callable[[], object] | None) -> bool:
        self._round(len(self.units))
        return entered is not None and entered() is True

    def _made(self, outcomes: list[Outcome], entered: Callable[[], object] | None) -> bool:
        """Return whether all end here, after a round of members; without outcomes none was made."""
        if outcomes:
            self._keep(outcomes)
        return bool(outcomes) and entered is not None and entered() is True

    def state_dict(self) -> dict[str, Any]:
        """Return anchors, momentum, detectors of every replica, counters: what this rank has."""
        return {
            **saved(self.switch),
            "step": self.step,
            "alone": self.alone,
            "replica": self.group.rank,
            "units": [unit.state_dict() for unit in self.units],
        }

    def load_state_dict(self, state: Mapping[str, Any], params: Iterable[Any]) -> None:
        """Take a state, copied; it communicates nothing.

        Args:
            state: What `state_dict` returned, on this rank or another.
            params: Those of the optimizer, in the same order as at the save.

        Raises:
            ValueError: the parameters are not those of the state.
        """
        flat = flat_of(params)
        if len(state["units"]) not in (0, len(flat)):
            raise ValueError(
                f"units: the state has {len(state['units'])} parameters, the optimizer has "
                f"{len(flat)}; load it into an optimizer of the same parameters"
            )
        self.step = int(state["step"])
        own = state["replica"] == self.group.rank
        self.units = [
            self._unit(number, param) for number, param in enumerate(flat[: len(state["units"])])
        ]
        for unit, one in zip(self.units, state["units"], strict=True):
            unit.load_state_dict(one, own=own)
        lone = max(0, self.step - self.config.local_sgd_warmup_steps)
        self._alone = int(state.get("alone", lone % self.config.local_sgd_sync_interval))
        load(self.switch, state, self.step, self._alone)
        self._go_on(self.units[0].round if self.units else 0)

    def clock(self) -> dict[str, Any]:
        """Return this replica's counters, for a checkpoint of any framework here."""
        return {
            "steps": self.step,
            "alone": self.alone,
            "tokens": 0,
            "due": self._due,
            "rounds": self.rounds + self._due,
            **saved(self.switch),
        }

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters; a round that the checkpoint had before it runs before a step."""
        self.step, self._alone = int(clock["steps"]), int(clock["alone"])
        self._due = bool(clock["due"])
        load(self.switch, clock, self.step, self._alone)
        self._go_on(int(clock["rounds"]))

    def _go_on(self, rounds: int) -> None:
        if self.turns is not None:
            self.turns.restart(0 if self._due else self._alone, rounds)
        if self._members is not None:
            self._members.go_on_from(self.step, self._alone)

    def _make_due_round(self) -> None:
        """Make the round that a checkpoint of FSDP2 had before it."""
        if not self._due:
            return
        self._due = False
        if self._members is not None:
            self._keep(self._members.make_round())
        else:
            self._round(len(self.units))

    def _has_entered(self) -> bool:
        """Return if all replicas have entered a round by time."""
        return self.turns is not None and self.turns.stepped() is not Entry.SKIP

    def _round(self, params: int) -> None:
        """Make a round of so many parameters."""
        if len(self.units) != params:
            raise RuntimeError(
                f"anchors: {len(self.units)} of {params} parameters have one. With "
                "local_sgd_warmup_steps=0 an averager must see them before the first local step: "
                "wrap the optimizer in StatefulPostLocalSGDOptimizer, or call before_step(params)"
            )
        outcomes = self._sync.run(self.units, steps=float(self._alone))
        self._alone = 0
        self._keep(outcomes)

    def _keep(self, outcomes: list[Outcome]) -> None:
        """Keep what a round did, and log it; loudly where replicas were left out."""
        self.outcomes = outcomes
        if self.group.rank == 0 and self.own.rank == 0:
            log_batch(outcomes, tells_clipping=self.config.is_debug)

    def _take_anchors(self, params: Iterable[Any]) -> None:
        """Set A := θ for the parameters that have none."""
        flat = flat_of(params)
        more = [self._unit(number, flat[number]) for number in range(len(self.units), len(flat))]
        are_first = not any(unit.has_anchors for unit in self.units)
        if more and self._members is not None:
            refuse_more(len(more))
        fresh = [unit for unit in self.units if not unit.has_anchors] + more
        if not fresh:
            return
        for unit in fresh:
            unit.take_anchors()
        check_equal(fresh, self.group, _HINT if are_first else "")
        if self.turns is not None and are_first:
            self.turns.restart()  # the time begins with the first lone step
        self.units += more

    def _unit(self, number: int, param: torch.Tensor) -> Unit:
        return Unit(_name(number), lambda: (_local(param),), self._outer)


class StatefulPostLocalSGDOptimizer:
    """An optimizer whose steps are counted by an averager; also a `torch.optim.Optimizer`.

    Attributes that are not here are those of the script's optimizer, its hooks among them.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Add torch's class as a base: schedulers ask for it, and torch is imported late."""
        own: Any = cls
        made: Self = object.__new__(_with_torch(own))
        return made

    def __init__(
        self, optim: torch.optim.Optimizer, averager: OuterOptimPeriodicModelAverager
    ) -> None:
        """Take the script's optimizer and the averager."""
        self.optim, self.averager = optim, averager
        averager.start(optim.param_groups, optim)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the script's optimizer."""
        if name in {"optim", "averager"}:  # not yet set: a copy in the making
            raise AttributeError(name)
        return getattr(self.optim, name)

    @property
    def state(self) -> Any:
        """The inner optimizer's state."""
        return self.optim.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's groups, also after it has loaded a state."""
        return self.optim.param_groups

    def __repr__(self) -> str:
        return repr(self.optim)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make an inner step, and the round that it ends, if it does."""
        self.averager.before_step(self.param_groups)
        loss = self.optim.step() if closure is None else self.optim.step(closure)
        self.averager.average_parameters(self.param_groups)
        return loss

    def shards(self, model: nn.Module) -> Shards:
        """Return the whole training state for a `Checkpointer`: `shards=optim.shards(model)`.

        It has every replica's weights and inner state, and loads in any number of replicas, also
        under FSDP2. With members that come and go it is this replica's, whole by itself.

        Args:
            model: The DistributedDataParallel, or what is in it.

        Raises:
            LocalSGDError: the optimizer has a parameter that the model has not.
        """
        averager = self.averager
        if not averager.units:
            averager.make_units(self.param_groups)
        fixed = averager.are_fixed
        place = (averager.group.rank, averager.group.size) if fixed else (0, 1)
        return shards_of(averager, model, self.optim, place)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Reset the gradients."""
        self.optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their anchors are taken before the next local step."""
        self.optim.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state, torch's "step", and "local_sgd": the averager's."""
        return {
            **self.optim.state_dict(),
            "step": self.averager.step,
            "local_sgd": self.averager.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state; one without "local_sgd" begins with the weights that are there then.

        A state of torch's `PostLocalSGDOptimizer`, or of a plain optimizer, has none: its anchors
        are taken before the next step, where all replicas must be equal.
        """
        inner = {name: one for name, one in state_dict.items() if name not in _OURS}
        self.optim.load_state_dict(inner)
        fallback = {"step": state_dict.get("step", 0), "replica": -1, "units": []}
        self.averager.load_state_dict(state_dict.get("local_sgd", fallback), self.param_groups)


_OURS: Final = ("step", "local_sgd")


@functools.cache
def _with_torch(cls: Any) -> Any:
    import torch

    if issubclass(cls, torch.optim.Optimizer):
        return cls
    return type(cls.__name__, (cls, torch.optim.Optimizer), {"__module__": cls.__module__})


def _name(number: int) -> str:
    """Return a parameter's name as a unit: no module has such a one, which FSDP2 would give it."""
    return f"parameter {number}"


def _local(param: Any) -> torch.Tensor:
    """Return the tensor that is on this rank."""
    tensor: torch.Tensor = param.to_local() if hasattr(param, "to_local") else param
    return tensor.detach()
