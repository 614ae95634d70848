"""Units of a model under `fully_shard`: which parameters synchronise together, and their hooks.

Belongs here: what a sync needs to know of FSDP2's modules, and where FSDP2 calls. Does not belong
here: when a unit synchronises (`fsdp2`).

A unit is what one call of `fully_shard` keeps together, also if that is several modules. Only its
trained parameters are synchronised: frozen ones do not change.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.flash.trainer.state_dict import fsdp_groups, parameters, unwrap
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.sync.group import Group

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained parameter; FSDP2 may put another object into its record."""

    name: str
    record: Any
    """FSDP2's record of the parameter, whose `sharded_param` is the DTensor."""

    @property
    def parameter(self) -> Any:
        """The sharded parameter, whatever the module shows at the moment."""
        return self.record.sharded_param

    @property
    def local(self) -> torch.Tensor:
        """This rank's shard, which writes change; it may be empty."""
        local: torch.Tensor = self.parameter._local_tensor.detach()  # noqa: SLF001 - no graph
        return local


@dataclass(frozen=True, slots=True)
class ShardedUnit:
    """The modules of one call of `fully_shard`, and their trained parameters."""

    name: str
    modules: tuple[Any, ...]
    trained: tuple[Trained, ...]

    def tensors(self) -> list[torch.Tensor]:
        """Return this rank's shards of the trained parameters."""
        return [one.local for one in self.trained]

    def drop_gathered(self) -> None:
        """Have the next forward gather anew what is about to be written.

        An evaluation leaves a root whole, and a prefetch has begun a gather of the old values:
        only waiting for it makes it one that `reshard` can drop.
        """
        for module in self.modules:
            if any(_is_gathering(group) for group in _groups(module)):
                module.unshard()
            module.reshard()

    def gather_in_order(self, *, root: bool) -> None:
        """Have the gather come behind what this stream has written.

        FSDP2's own streams wait for the script's only when the root's forward begins, which is
        before the writes of all units but the root's; and for an event of the script's own in its
        place (`set_post_optim_event`), which is before the root's writes too.
        """
        if not root:
            self.modules[0].unshard(async_op=True)
        elif self.trained[0].local.is_cuda:
            import torch

            event = torch.cuda.current_stream().record_event()
            self.modules[0].set_post_optim_event(event)


def units_of(model: nn.Module, own: dist.ProcessGroup) -> list[ShardedUnit]:
    """Return the units of a model, in the order of its modules; the root comes first.

    Args:
        model: `fully_shard` has been called on it.
        own: This replica's ranks.

    Raises:
        LocalSGDError: a trained parameter is in no unit, or on another mesh.
    """
    names = {id(holder[key]): name for name, holder, key in reversed(list(parameters(model)))}
    found: dict[int, tuple[list[str], list[Any], Any]] = {}
    for name, module in unwrap(model).named_modules():
        if hasattr(module, "_get_fsdp_state"):
            state: Any = module._get_fsdp_state()  # noqa: SLF001 - no public way
            known = found.setdefault(id(state), ([], [], state))
            known[0].append(name or "root")
            known[1].append(module)
    units = [
        ShardedUnit("+".join(of), tuple(modules), tuple(_trained(state, names)))
        for of, modules, state in found.values()
    ]
    _refuse_left_out(model, units)
    _refuse_other_mesh(units, own)
    return units


def _trained(state: Any, names: dict[int, str]) -> Iterator[Trained]:
    for group in fsdp_groups(state):
        for record in group.fsdp_params:
            if record.sharded_param.requires_grad:
                yield Trained(names[id(record.sharded_param)], record)


def _groups(module: Any) -> list[Any]:
    return fsdp_groups(module._get_fsdp_state())  # noqa: SLF001 - no public way


def _is_gathering(group: Any) -> bool:
    """Return True if a gather is under way; True where this torch does not show it."""
    return getattr(group, "_all_gather_result", group) is not None


def _refuse_left_out(model: nn.Module, units: list[ShardedUnit]) -> None:
    known = {id(one.parameter) for unit in units for one in unit.trained}
    left = [
        name
        for name, holder, key in parameters(model)
        if holder[key].requires_grad and id(holder[key]) not in known
    ]
    if left:
        raise LocalSGDError(
            f"model: {len(left)} trained parameters are in no module that fully_shard was called "
            f"on ({', '.join(left[:3])}): no replica would learn of their changes. Call "
            "fully_shard(model, mesh=mesh[...]) on the whole model before this"
        )


def _refuse_other_mesh(units: list[ShardedUnit], own: dist.ProcessGroup) -> None:
    import torch.distributed as dist

    wanted = dist.get_process_group_ranks(own)
    for unit in units:
        for one in unit.trained:
            mesh = one.parameter.device_mesh
            if mesh.ndim != 1 or mesh.mesh.flatten().tolist() != wanted:
                raise LocalSGDError(
                    f"parameter {one.name} is on a mesh of ranks {mesh.mesh.tolist()}, this "
                    f"replica's shards are on ranks {wanted}: call fully_shard with the shard "
                    'dimension alone, such as mesh=mesh["shard"]'
                )


def refuse_new_parameters(units: Sequence[ShardedUnit], optimizers: Sequence[Any]) -> None:
    """Refuse a parameter that is trained since: no replica would learn of its changes.

    Raises:
        LocalSGDError: names the parameter's shape.
    """
    known = {id(one.parameter) for unit in units for one in unit.trained}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for one in group["params"]:
                if one.requires_grad and id(one) not in known:
                    raise LocalSGDError(
                        f"optimizer: a parameter of shape {tuple(one.shape)} is trained now "
                        "and was not when LocalSGD was made, so no replica would learn of its "
                        "changes: set requires_grad first, then make the optimizer and LocalSGD"
                    )


def share_inner_state(optimizers: Sequence[Any], replicas: Group) -> None:
    """Give all replicas the first one's inner state: equal gradients must move all alike.

    Raises:
        SyncError: a rank is gone.
    """
    import torch
    from torch.distributed.tensor import DTensor

    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if not torch.is_tensor(value):
                        continue
                    local = value.to_local() if isinstance(value, DTensor) else value
                    if local.numel():
                        moved = local.to(replicas.device)  # counts of steps may be on the CPU
                        replicas.begin_broadcast(moved, 0).wait()
                        local.copy_(moved)


def hook_modules(
    units: Sequence[ShardedUnit],
    before_forward: Callable[..., None],
    average: Callable[[torch.Tensor], None],
) -> list[Any]:
    """Set the hooks of all modules; return the handles of those before a forward.

    Args:
        units: Frozen ones too.
        before_forward: Called with the number of a unit among those that are trained, None for a
            frozen one, and what a pre-hook gets, before FSDP2 gathers it.
        average: Called with the gradient of a unit, reduced over the replica.
    """
    import torch

    call: Any = torch.compiler.disable(before_forward)  # left out of graphs
    handles, numbers = list[Any](), itertools.count()
    for unit in units:
        before = functools.partial(call, next(numbers) if unit.trained else None)
        for module in unit.modules:
            handles.append(module.register_forward_pre_hook(before, prepend=True))
            _hook_gradients(unit.name, module, average)
    return handles


def unhook_gradients(units: Sequence[ShardedUnit]) -> None:
    """Leave gradients as they are from now on."""
    for unit in units:
        for module in unit.modules:
            if hasattr(module, "set_all_reduce_hook"):  # FSDP1 has none
                module.set_all_reduce_hook(lambda _: None)


def _hook_gradients(name: str, module: Any, average: Callable[[torch.Tensor], None]) -> None:
    if not hasattr(module, "set_all_reduce_hook"):
        return  # FSDP1 has none, and averages by itself
    try:
        module.set_all_reduce_hook(average)
    except ValueError as error:  # several meshes in one unit
        raise LocalSGDError(
            f"unit {name} has parameters on several meshes, where FSDP2 takes no all-reduce "
            "hook: shard them all over the mesh's second dimension"
        ) from error
