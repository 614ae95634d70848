"""EDiT for a model under FSDP1's HYBRID_SHARD: two lines in a script that cannot move to FSDP2.

```python
model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, ...)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
local = HybridShardLocalSGD(model, optimizer, LocalSGDConfig(local_sgd_sync_interval=16), outer)
```

Belongs here: what FSDP1 does otherwise than FSDP2. Does not belong here: when a unit synchronises,
which is the same for both (`fsdp2`).

Facts of FSDP1 that this stands on, on torch 2.15; the test of training would fail without each:

- A unit is one flat parameter. Its padding has no gradient, stays zero, and may be synchronised.
- A forward pre-hook sees the shard, and what it writes is gathered. After an evaluation the root is
  whole, and a write is lost unless its gathered copy is freed before.
- HYBRID_SHARD sums gradients over the replicas in each backward, and takes no communication hook.
  Its group of replicas is an attribute, so local steps give it a group of this rank alone.
- Gradients are divided by two factors whose product is the number of all ranks. A factor below 1
  would be ignored, so both are set for the ranks that really add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.shards import Shards
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.frameworks.fsdp2 import LocalSGD
from holdfast.local_sgd.frameworks.fsdp2_units import ShardedUnit, Trained
from holdfast.local_sgd.sync.group import TIMEOUT, Group

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

_WRAPPER: Final = "_fsdp_wrapped_module"
_SHARD: Final = "_local_shard"
"""Attribute of a flat parameter, which itself may be whole."""
_NEEDED: Final = ("_inter_node_pg", "_gradient_predivide_factor", "_gradient_postdivide_factor")
"""Attributes of FSDP1 that have no public name."""


@dataclass(frozen=True, slots=True)
class _FlatParameter(Trained):
    """A parameter as the optimizer has it: a part of a flat one, or the flat one itself."""

    @property
    def parameter(self) -> Any:
        """The object that the optimizer steps."""
        return self.record


@dataclass(frozen=True, slots=True)
class _FlatUnit(ShardedUnit):
    """One module under FSDP1, and its flat parameter."""

    def shard(self) -> torch.Tensor:
        """Return this rank's shard, padding included."""
        flat = _handle(self.modules[0]).flat_param
        local: torch.Tensor = getattr(flat, _SHARD, flat)  # the first forward sets the attribute
        return local.detach()

    def tensors(self) -> list[torch.Tensor]:
        """Return the shard that synchronises."""
        return [self.shard()] if self.trained else []

    def drop_gathered(self) -> None:
        """Have the next forward gather anew: an evaluation leaves the root whole."""
        handle = _handle(self.modules[0])
        has_run = handle is not None and hasattr(handle.flat_param, _SHARD)
        if has_run and not handle.needs_unshard():
            handle.reshard(free_unsharded_flat_param=True)
            handle.post_reshard()

    def gather_in_order(self, *, root: bool) -> None:
        """Have the gather come behind what this stream has written."""
        if self.shard().is_cuda:
            import torch

            self.modules[0]._unshard_stream.wait_stream(torch.cuda.current_stream())  # noqa: SLF001


class HybridShardLocalSGD(LocalSGD):
    """`LocalSGD` of a model under FSDP1; its replicas are those of the model's own groups.

    Checkpoints: each rank keeps `state_dict()` beside its own of FSDP1, and loads both in the same
    world. For another number of replicas or shards, and for flash checkpoints, move to FSDP2.
    """

    switches = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        config: LocalSGDConfig,
        outer: OuterOptimizerConfig | None = None,
        gta: GTAConfig | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Register the hooks, and give all replicas the weights of the first; a collective.

        Args:
            model: A FullyShardedDataParallel with HYBRID_SHARD or _HYBRID_SHARD_ZERO2, of at least
                two shards, before its first forward or after any.
            optimizer: As `LocalSGD` has it.
            config: As `LocalSGD` has it.
            outer: As `LocalSGD` has it.
            gta: As `LocalSGD` has it.
            timeout: Seconds until a collective of a sync has failed.

        Raises:
            LocalSGDConfigError: settings contradict each other.
            LocalSGDError: the model does not fit; the message says what to change.
        """
        import torch.distributed as dist

        _refuse_other(model)
        self._lone: dist.ProcessGroup = dist.new_group(  # type: ignore[assignment]
            [dist.get_rank()], use_local_synchronization=True
        )
        self._first_factor = {id(one): getattr(one, _NEEDED[1]) for one in _states(model)}
        super().__init__(model, optimizer, None, config, outer, gta, timeout=timeout)
        self._share_gradients()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's counters, anchors and momentum; no collective."""
        return {
            "clock": self.clock(),
            "units": {unit.name: unit.state_dict() for unit in self.units},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's state, copied.

        Raises:
            LocalSGDError: the state is of other units.
        """
        own = {unit.name: unit for unit in self.units}
        if state["units"].keys() != own.keys():
            raise LocalSGDError(
                f"units: the state has {sorted(state['units'])}, the model {sorted(own)}: wrap the "
                "model as it was when it was saved"
            )
        for name, unit in own.items():
            unit.load_state_dict(state["units"][name])
        self.set_clock(state["clock"])

    def shards(self) -> Shards:
        """Raise: a flat parameter's shard is no box of a global tensor here."""
        raise LocalSGDError(
            "shards(): a model under FSDP1 has no flash checkpoint: save state_dict() of this "
            "object, of the model and of the optimizer on each rank, or use fully_shard (FSDP2)"
        )

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters of a checkpoint; see `LocalSGD.set_clock`."""
        super().set_clock(clock)
        self._share_gradients()

    def regroup(self, sync_ranks: dist.ProcessGroup) -> None:
        """Go on with other replicas; see `LocalSGD.regroup`."""
        super().regroup(sync_ranks)
        self._share_gradients()

    def detach(self) -> None:
        """Remove the hooks; every replica goes on alone."""
        super().detach()
        self._set_gradients(shared=False)

    def _members_of(self, mesh: object, timeout: float) -> FixedMembers:
        del mesh
        (state, *_) = _states(self.model)
        groups = state._inter_node_pg, state.process_group  # noqa: SLF001 - no public way
        return FixedMembers(
            Group.like(groups[0], timeout=timeout), Group(groups[1], timeout=timeout)
        )

    def _units_of(self, own: Group) -> list[ShardedUnit]:
        del own
        return [_unit(name, module) for name, module in _named_states(self.model)]

    def _before_step(self, *_: Any) -> None:
        self._is_step = True  # FSDP1 has no hook that tells
        super()._before_step()

    def _after_step(self, *_: Any) -> None:
        super()._after_step()
        self._share_gradients()

    def _share_gradients(self) -> None:
        self._set_gradients(shared=self.is_warming_up)

    def _set_gradients(self, *, shared: bool) -> None:
        """Have the next backward average over all replicas, or over this one's ranks alone."""
        group = self.replicas.ranks if shared else self._lone
        ranks = float(self.shard_group.size * group.size())
        for one in _states(self.model):
            one._inter_node_pg = group  # noqa: SLF001 - no public way
            first = min(self._first_factor[id(one)], ranks)
            one._gradient_predivide_factor = first  # noqa: SLF001
            one._gradient_postdivide_factor = ranks / first  # noqa: SLF001

    def share_weights(self, source: int) -> None:
        """Give all replicas the weights of one, frozen ones too."""
        if self.replicas.size == 1:
            return
        for unit in self.modules:
            if isinstance(unit, _FlatUnit) and _handle(unit.modules[0]) is not None:
                unit.drop_gathered()
                self.replicas.begin_broadcast(unit.shard(), source).wait()


def _unit(name: str, module: Any) -> _FlatUnit:
    """Return a module's unit; one without trained parameters synchronises nothing."""
    handle, trained = _handle(module), tuple[_FlatParameter, ...]()
    if handle is not None and handle.flat_param.requires_grad:
        flat = handle.flat_param
        parts = flat._params if flat._params is not None else [flat]  # noqa: SLF001
        trained = tuple(_FlatParameter(name, one) for one in parts if one.requires_grad)
    return _FlatUnit(name, (module,), trained)


def _handle(module: Any) -> Any:
    """Return FSDP1's record of the flat parameter; None: the module has none of its own."""
    return module._handle  # noqa: SLF001 - no public way


def _named_states(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the names and modules under FSDP1; the root comes first."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    found = []
    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel):
            parts = [part for part in name.split(".") if part != _WRAPPER]
            found.append((".".join(parts) or "root", module))
    return found


def _states(model: nn.Module) -> list[Any]:
    return [module for _, module in _named_states(model)]


_REFUSALS: Final[Sequence[tuple[Callable[[Any], bool], str]]] = (
    (
        lambda state: "HYBRID_SHARD" not in state.sharding_strategy.name,
        (
            "sharding_strategy={0.sharding_strategy.name}: replicas are those of HYBRID_SHARD; "
            "pass it with a device_mesh of two dimensions and at least two shards, or use DDP for "
            "replicas of one rank"
        ),
    ),
    (
        lambda state: bool(state.forward_prefetch),
        "forward_prefetch=True gathers weights before they are synchronised: leave it out",
    ),
    (
        lambda state: bool(state.cpu_offload.offload_params),
        (
            "cpu_offload: parameters on the CPU are not synchronised under FSDP1; leave it out, or "
            "use fully_shard (FSDP2)"
        ),
    ),
)


def _refuse_other(model: nn.Module) -> None:
    """Refuse a model that this cannot synchronise."""
    states = _named_states(model)
    if not states or states[0][1] is not model:
        raise LocalSGDError(
            f"model: a {type(model).__name__} is no FullyShardedDataParallel; wrap the whole model "
            "in one, or use LocalSGD for a model under fully_shard"
        )
    for name, state in states:
        for refuses, text in _REFUSALS:
            if refuses(state):
                raise LocalSGDError(f"model: {name}: {text.format(state)}")
        if any(not hasattr(state, one) for one in _NEEDED):
            raise LocalSGDError(
                f"model: this torch's FSDP1 lacks one of {', '.join(_NEEDED)}: use fully_shard "
                "(FSDP2)"
            )
