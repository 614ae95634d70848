"""EDiT for DistributedDataParallel: an averager whose units are the optimizer's parameters.

Belongs here: where DDP keeps its weights, and when the script's optimizer calls. Does not belong
here: the optimizer around the script's own (`ddp_optimizer`), the course of a round (`driver`).

Each parameter is a unit, with a detector and weights of its own; clipping takes the norm of all
together. All units go in one transfer, at the end of a step. For the first W steps DDP reduces
gradients as ever (`start_localSGD_iter` counts backward passes that reduce, and must end with these
W steps). Then the anchors are taken, and after each H steps more a round follows. By time (A-EDiT,
`use_async`) a round follows the step in which some replica's time is up; call `finish()` at the end
of the data.

`state_dict()` is the state of one rank, and communicates nothing. Each rank that resumes from its
own goes on exactly. With rank 0's on all ranks, as is usual with DDP, anchors, momentum and
detectors of all replicas are exact; weights and inner state are rank 0's, and what a codec lost
elsewhere is lost.

A DDP that is kept across a change of members divides its gradients by the size of its group. So
members that come and go have a process group and a DDP each, which no change touches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.driver.framework import Framework
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.driver.spanning import spanning
from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError
from holdfast.local_sgd.sync.configured import outer_of
from holdfast.local_sgd.sync.group import TIMEOUT, Group
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

    from holdfast.local_sgd.members.members import Members

_COMPARED: Final = 3
"""Steps of each process in which DDP may compare its buckets over all ranks."""


class OuterOptimPeriodicModelAverager(Framework):
    """Rounds of a DDP model, counted in steps of its optimizer; one of torch's `ModelAverager`."""

    switches = True
    hint = (
        ". Or they have parted in the warm-up: start_localSGD_iter counts backward passes that "
        "reduce, so under gradient accumulation wrap all but the last micro-batch in "
        "model.no_sync()"
    )

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
        config = local_sgd_config if local_sgd_config is not None else LocalSGDConfig()
        self.check_settings(config, outer_optim_config, gta_config)
        self._outer = outer_of(config, outer_optim_config)
        who = _members_of(process_group, config, timeout)
        self.units = []
        self._params: list[Any] = []
        """Of the optimizer, in its order; units of those that are trained alone have anchors."""
        self._groups: list[Any] = []
        self._is_started = False
        self.drive(config, gta_config, who, first=_name(0))
        self._look_for_spanning(own=False)

    @property
    def step(self) -> int:
        """Steps of the optimizer so far, by the name that torch's averagers have for it."""
        return self.steps

    @property
    def group(self) -> Group:
        """The replicas that are there."""
        return self.replicas

    @property
    def own(self) -> Group:
        """The ranks of this replica."""
        return self.shard_group

    def start(self, params: Iterable[Any], inner: torch.optim.Optimizer | None = None) -> None:
        """Meet the members, where the averager has `Members`: before the first step, once.

        Args:
            params: Groups of the optimizer, whose learning rates a joiner takes.
            inner: The optimizer, whose state a joiner takes; None: it begins with a fresh one.

        Raises:
            MembersError, SyncError: none came, or a rank of this replica is gone.
        """
        params = list(params)
        if self._is_started:
            return
        self._is_started = True
        self._groups = [one for one in params if isinstance(one, dict)]
        if self.driver.who.meets:
            self._meet(params, () if inner is None else (inner,))

    def _meet(self, params: list[Any], inner: tuple[Any, ...]) -> None:
        from holdfast.local_sgd.sync.inner_state import TorchInnerState

        self.make_units(params)
        self.inner = TorchInnerState(self._slots, lambda: len(self.units), inner)
        self.driver.start()
        self._look_for_spanning(own=True)  # rounds of members have groups of their own

    def carry_buffers(self, model: nn.Module) -> None:
        """Give replicas that come later the buffers of a model, such as BatchNorm's statistics.

        The averager knows the parameters only. A replica that has come later takes them at once.
        Fixed replicas have no need.
        """
        if self.driver.who.meets:
            self.inner.add_buffers(model)

    def make_units(self, params: Iterable[Any]) -> None:
        """Make a unit of each parameter that has none, without anchors yet.

        Raises:
            LocalSGDError: one was added where members come and go.
        """
        self._params = _flat(params)
        more = range(len(self.units), len(self._params))
        if more and self.units and not self.are_fixed:
            raise LocalSGDError(
                f"add_param_group: {len(more)} parameters are new, and members that come and go "
                "exchange those of the start: give the optimizer all of them before it is wrapped"
            )
        self.units += [self._unit(number, self._params[number]) for number in more]

    def before_step(self, params: Iterable[Any]) -> None:
        """Take anchors if the next step is the first local one; call it before that step.

        Raises:
            AnchorsDifferError: the replicas have different weights.
        """
        params = list(params)  # it may be a generator
        self.start(params)
        self.make_units(params)
        self.driver.before_step()

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Count a step, and make the round that it ends, if it does.

        Args:
            params: Parameters, or the groups of an optimizer, in the same order each time.

        Raises:
            SyncError: a replica is gone; the weights are as this replica's steps left them.
        """
        self.make_units(params)
        self.driver.after_step()

    def check(self) -> None:
        """Refuse a round of parameters that no averager has seen before their first local step."""
        lacking = sum(not unit.has_anchors for unit in self.units)
        if self.due and lacking:
            self.driver.due = False  # a script may make up for it, and go on
            raise RuntimeError(
                f"anchors: {len(self.units) - lacking} of {len(self.units)} parameters have one. "
                "With local_sgd_warmup_steps=0 an averager must see them before the first local "
                "step: wrap the optimizer in StatefulPostLocalSGDOptimizer, or call "
                "before_step(params)"
            )

    def align(self) -> None:
        """Change nothing: DDP makes equal steps, and replicas that have parted are an error."""

    def inner_groups(self) -> list[Any]:
        """Groups of the script's optimizer."""
        return self._groups

    def state_dict(self) -> dict[str, Any]:
        """Anchors, momentum, detectors of every replica, counters: what this rank has."""
        return {
            **self.driver.when.state(),
            "step": self.steps,
            "alone": self.alone,
            "replica": self.replicas.rank,
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
        flat, given = _flat(params), state["units"]
        if len(given) not in (0, len(flat)):
            raise ValueError(
                f"units: the state has {len(given)} parameters, the optimizer has {len(flat)}; "
                "load it into an optimizer of the same parameters"
            )
        own = state["replica"] == self.replicas.rank
        self.units = [self._unit(number, flat[number]) for number in range(len(given))]
        for unit, one in zip(self.units, given, strict=True):
            unit.load_state_dict(one, own=own)
        step = int(state["step"])
        lone = max(0, step - self.config.local_sgd_warmup_steps)
        alone = int(state.get("alone", lone % self.config.local_sgd_sync_interval))
        rounds = self.units[0].round if self.units else 0
        self.set_clock({**state, "steps": step, "alone": alone, "rounds": rounds})

    def _look_for_spanning(self, *, own: bool) -> None:
        if self.are_fixed and own == self.driver.who.meets:
            by_time = self.config.use_async
            self.driver.spanning = spanning(
                self.replicas, by_time=by_time, own=own, skips=_COMPARED
            )

    def _slots(self, number: int) -> list[Any]:
        return [self._params[number]]

    def _unit(self, number: int, param: torch.Tensor) -> Unit:
        return Unit(_name(number), functools.partial(_tensors, param), self._outer)


def _name(number: int) -> str:
    """Return a parameter's name as a unit: no module has such a one, which FSDP2 would give it."""
    return f"parameter {number}"


def _tensors(param: Any) -> tuple[torch.Tensor]:
    """Return this rank's tensor of a parameter."""
    tensor: torch.Tensor = param.to_local() if hasattr(param, "to_local") else param
    return (tensor.detach(),)


def _flat(params: Iterable[Any]) -> list[Any]:
    """Return the parameters of what may be groups of an optimizer."""
    return [each for one in params for each in (one["params"] if isinstance(one, dict) else [one])]


def _members_of(
    given: dist.ProcessGroup | Members | None, config: LocalSGDConfig, timeout: float
) -> FixedMembers:
    import torch.distributed as dist

    if given is None or isinstance(given, dist.ProcessGroup):
        return FixedMembers(Group(given, timeout=timeout), Group.of_one())
    from holdfast.local_sgd.driver.changing import ChangingMembers

    if given.changes:
        refuse_ddp_over_replicas(given, config)
    return ChangingMembers(given)


def refuse_ddp_over_replicas(members: Members, config: LocalSGDConfig) -> None:
    """Refuse members that come and go where gradients are averaged over them.

    Raises:
        LocalSGDConfigError: the default group has several replicas, or there is a warm-up.
    """
    import torch.distributed as dist

    world, own = dist.get_world_size(), members.shard_group.size
    if world != own:
        raise LocalSGDConfigError(
            f"members: a replica has {own} ranks and the default group {world}: a DDP that spans "
            "replicas divides by the old number of ranks after a change. Call init_process_group "
            "for the ranks of one replica only, and make DDP in it"
        )
    if steps := config.local_sgd_warmup_steps:
        raise LocalSGDConfigError(
            f"local_sgd_warmup_steps={steps}: DDP averages gradients inside a replica, so replicas "
            "that come and go have no warm-up; set it to 0, or use FSDP2"
        )
