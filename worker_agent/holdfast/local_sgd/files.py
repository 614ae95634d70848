"""Files of local SGD's state beside a checkpoint of another kind, by ATorch's two calls.

Belongs here: writing and reading these files. Does not belong here: the state in a flash checkpoint
(`shards`), which also keeps each replica's weights and what a codec lost.

| file | has | written by |
|---|---|---|
| `<name>.pt` (`full_state_dict=True`) | whole tensors | the first rank of replica 0 |
| `<name>_<shard>.pt` | the shards of one rank | each rank of replica 0 |

Both have anchors, outer state, rounds, the detectors of all replicas, and replica 0's step count. A
save synchronises nothing and waits for no other replica. A load reads what lies there, from any
number of shards; `full_state_dict` only decides where both lie there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Box, overlap
from holdfast.flash.trainer.planner import LocalPart
from holdfast.flash.trainer.reshard import narrow
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.frameworks.fsdp2 import LocalSGD, local_sgd_of
from holdfast.local_sgd.frameworks.fsdp2_units import ShardedUnit, Trained
from holdfast.local_sgd.policies.anomaly import Ewma
from holdfast.local_sgd.shards import place_of
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

_FORMAT: Final = 1
log: Final = logging.getLogger("holdfast")


def save_local_sgd_state_dict(
    model: nn.Module,
    group: dist.ProcessGroup | None = None,
    rank0_only: bool = True,  # noqa: FBT001, FBT002 - ATorch's own
    full_state_dict: bool = False,  # noqa: FBT001, FBT002
    cpu_offload: bool = True,  # noqa: FBT001, FBT002
    save_dir: str | os.PathLike[str] = "./lsgd_ckpt",
    ckpt_name: str = "lsgd_ckpt",
) -> None:
    """Write the state; replica 0's ranks do, and the others return at once.

    Args:
        model: The model that a `LocalSGD` was made for.
        group: The ranks of this replica; None: those of its mesh.
        rank0_only: Of whole tensors, only the first rank keeps each one.
        full_state_dict: One file of whole tensors, which the ranks of replica 0 gather together.
        cpu_offload: Move each tensor to the CPU at once.
        save_dir: Directory, which is made; visible to all ranks that load.
        ckpt_name: Begin of the files' names.

    Raises:
        LocalSGDError: the model has no `LocalSGD`, or the group is not this replica's.
        OSError: a file cannot be written.
    """
    local = local_sgd_of(model)
    _check_group(local, group)
    if local.replicas.rank != 0:
        return
    first = local.shard_group.rank == 0
    keep = not (full_state_dict and rank0_only) or first
    every = _parameters(local, full=full_state_dict, offload=cpu_offload)
    parameters = {name: one for name, one in every if keep}  # all ranks gather, one keeps
    state = {
        "format": _FORMAT,
        "clock": local.clock(),
        "parameters": parameters,
        "units": {unit.name: _unit_state(unit) for unit in local.units},
    }
    if full_state_dict and first:
        _write(Path(save_dir) / f"{ckpt_name}.pt", state)
    elif not full_state_dict:
        _write(Path(save_dir) / f"{ckpt_name}_{local.shard_group.rank:02d}.pt", state)


def load_local_sgd_state_dict(
    model: nn.Module,
    group: dist.ProcessGroup | None = None,
    rank0_only: bool = True,  # noqa: FBT001, FBT002, ARG001 - ATorch's own
    full_state_dict: bool = False,  # noqa: FBT001, FBT002
    load_dir: str | os.PathLike[str] = "./lsgd_ckpt",
    ckpt_name: str = "lsgd_ckpt",
) -> None:
    """Take a state over, on every rank of every replica; it communicates nothing.

    The weights are not touched: load them before. What a codec lost begins anew.

    Args:
        model: The model that a `LocalSGD` was made for.
        group: The ranks of this replica; None: those of its mesh.
        rank0_only: Accepted and not needed: each rank reads the bytes of its own shards.
        full_state_dict: The file of whole tensors, where files of both kinds lie there.
        load_dir: Directory of the files.
        ckpt_name: Begin of the files' names.

    Raises:
        FileNotFoundError: neither kind of file lies there.
        LocalSGDError: a file is of another kind or model; nothing was changed.
    """
    local = local_sgd_of(model)
    _check_group(local, group)
    files = [_read(path) for path in _found(Path(load_dir), ckpt_name, full=full_state_dict)]
    coming = [
        (unit, _filled(unit, module, [one["parameters"] for one in files]))
        for unit, module in zip(local.units, local.trained, strict=True)
    ]
    for unit, spare in coming:
        _take(unit, spare, files[0]["units"].get(unit.name, {}))
    local.set_clock(files[0]["clock"])


def _check_group(local: LocalSGD, group: dist.ProcessGroup | None) -> None:
    import torch.distributed as dist

    if group is None:
        return
    given, own = (
        sorted(dist.get_process_group_ranks(one)) for one in (group, local.shard_group.ranks)
    )
    if given != own:
        raise LocalSGDError(
            f"group has ranks {given}, this replica has {own}: pass the group of the mesh's second "
            "dimension, or None"
        )


def _parameters(
    local: LocalSGD, *, full: bool, offload: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name, and anchor and outer state with their place, of each trained parameter."""
    for unit, module in zip(local.units, local.trained, strict=True):
        if not unit.has_anchors:
            continue
        optimizer = unit.anchors.optimizer
        for anchor, one in zip(unit.anchors.values, module.trained, strict=True):
            place = place_of(one)
            state = optimizer.state.get(anchor, {}) if optimizer is not None else {}
            tensors = {"anchor": anchor, **{f"outer.{key}": v for key, v in state.items()}}
            held = {
                key: _kept(value, one, full=full, offload=offload)
                for key, value in tensors.items()
                if hasattr(value, "shape")
            }
            offsets = (0,) * len(place.shape) if full else place.offsets
            yield one.name, {"shape": list(place.shape), "offsets": list(offsets), **held}


def _kept(value: torch.Tensor, one: Trained, *, full: bool, offload: bool) -> torch.Tensor:
    """Return a tensor as it is written: whole if it is sharded as the parameter and `full`."""
    from torch.distributed.tensor import DTensor

    parameter = one.parameter
    if full and value.shape == one.local.shape:
        sharded = DTensor.from_local(
            value.detach().to(one.local.device),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        value = sharded.full_tensor()
    return value.detach().cpu().clone() if offload else value.detach().clone()


def _unit_state(unit: Unit) -> dict[str, Any]:
    return {
        "round": unit.round,
        "detectors": {replica: list(one.state()) for replica, one in unit.detectors.items()},
    }


def _write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a file that is there as a whole or not at all."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _found(folder: Path, name: str, *, full: bool) -> list[Path]:
    """Return the files to read; where both kinds lie there, those that `full` names."""
    whole = folder / f"{name}.pt"
    shards = sorted(folder.glob(f"{name}_[0-9][0-9]*.pt"))
    if whole.exists() and (full or not shards):
        return [whole]
    if shards:
        if full:
            log.info("%s has shards of %s and no whole tensors: they are read", folder, name)
        return shards
    raise FileNotFoundError(
        f"{folder} has neither {name}.pt nor {name}_00.pt: give the load_dir and the ckpt_name of "
        "the save"
    )


def _read(path: Path) -> dict[str, Any]:
    import torch

    try:
        state: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, ValueError, EOFError) as error:
        raise LocalSGDError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        held = ", ".join(map(str, list(state)[:5])) if isinstance(state, dict) else type(state)
        raise LocalSGDError(
            f"{path} is no state of this local SGD (it has {held}): ATorch's files have no "
            "anchors, so begin from the weights instead"
        )
    found: dict[str, Any] = state
    return found


def _filled(unit: Unit, module: ShardedUnit, files: list[Mapping[str, Any]]) -> Unit | None:
    """Return a unit with the stored anchors and outer state; None: they were not there yet."""
    if not any(files):
        return None
    spare = Unit(unit.name, unit.tensors, unit.outer)
    spare.take_anchors()
    optimizer = spare.anchors.optimizer
    for anchor, one in zip(spare.anchors.values, module.trained, strict=True):
        parts = [part for file in files if (part := file.get(one.name)) is not None]
        place = place_of(one)
        if not parts or tuple(parts[0]["shape"]) != place.shape:
            shape = tuple(parts[0]["shape"]) if parts else "nothing"
            raise LocalSGDError(
                f"{one.name} has shape {place.shape}, in the files {shape}: load the state of the "
                "same model"
            )
        _fill(anchor, "anchor", parts, place)
        for key in [key for key in parts[0] if key.startswith("outer.")]:
            if optimizer is not None:
                value = _outer_like(anchor, parts[0], key, place)
                _fill(value, key, parts, place)
                optimizer.state[anchor][key.removeprefix("outer.")] = value
    return spare


def _outer_like(
    anchor: torch.Tensor, part: Mapping[str, Any], key: str, place: LocalPart
) -> torch.Tensor:
    """Return the memory for a tensor of the outer state: sharded as the anchor, or whole."""
    import torch

    held: torch.Tensor = part[key]
    if held.dim() == len(place.shape):
        return torch.empty_like(anchor, dtype=held.dtype)
    return held.clone()


def _fill(value: torch.Tensor, key: str, parts: list[Mapping[str, Any]], place: LocalPart) -> None:
    """Copy what overlaps from each part."""
    if value.dim() != len(place.shape):
        return
    wanted: Box = (place.offsets, tuple(value.shape))
    count = 0
    for part in parts:
        held, offsets = part[key], tuple(part["offsets"])
        common = overlap((offsets, tuple(held.shape)), wanted)
        if common is not None:
            to = narrow(value, common, place.offsets)
            to.copy_(narrow(held, common, offsets))
            count += to.numel()
    if count != value.numel():
        raise LocalSGDError(
            f"{key}: the files have {count} of {value.numel()} elements of this rank's shard: a "
            "file of the save is missing"
        )


def _take(unit: Unit, spare: Unit | None, state: Mapping[str, Any]) -> None:
    unit.adopt(spare if spare is not None else Unit(unit.name, unit.tensors))
    unit.round = state.get("round", 0)
    detectors = state.get("detectors", {}).items()
    unit.detectors = {int(replica): Ewma.of(one) for replica, one in detectors}
