"""DeepSpeed's universal checkpoints, metadata 0.2 to 0.4: whole parameters in `zero/<name>/`.

    mp_rank_00_model_states.pt             the engine's values, the parameters' shapes
    zero/optimizer_state.pt                the optimizer's settings
    zero/<parameter>/fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt

ZeRO-1/2 write a dict with the tensor in its shape; ZeRO-3 the flat tensor, and one step for all.
What is written here is in the first form, which DeepSpeed loads into every stage.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path as File
from typing import Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.deepspeed_files import (
    INFO,
    MOMENTS,
    VERSION,
    ModelFiles,
    group_values,
    scalar,
)
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError, ForeignTensor, whole
from holdfast.flash.tools.formats.holdfast_step import Progress
from holdfast.flash.tools.formats.pickles import Pickles, TensorRef
from holdfast.flash.tools.formats.torch_file import TorchArchive, TorchFile, save

ZERO: Final = "zero"
SETTINGS: Final = "optimizer_state.pt"
_FLOATING: Final = ("float16", "bfloat16", "float32")
_DS_VERSION: Final = "0.19.8"
"""DeepSpeed refuses to load without a version, and ZeRO-1 files before 0.3.17."""


def read(place: str, pickles: Pickles) -> Checkpoint:
    """Return a universal checkpoint; raises `ForeignError` naming the file, OSError."""
    files = ModelFiles(place, pickles)
    files.refuse_mixed_up()
    version = files.version()
    shapes = _shapes(files)
    settings = TorchFile(pickles, f"{place}/{ZERO}/{SETTINGS}")
    state = settings.state if isinstance(settings.state, Mapping) else {}
    groups = state.get("param_groups")
    buffers = {tensor.path[1]: tensor for tensor in files.buffers()}
    kept = _untrained(files)
    tensors, values = list[ForeignTensor](), group_values(groups, settings.path) | files.values()
    for name, folder in _folders(place, shapes):
        if name in buffers or name in kept:
            continue  # the converter copies what is not trained too, as fp32
        tensors += _parameter(folder, name, shapes.get(name), pickles)
        tensors += _step(folder, name, settings, pickles)
    return Checkpoint(
        place=place,
        format="deepspeed-universal",
        framework=f"DeepSpeed {files.get('ds_version', '')}".strip(),
        layout="universal" if version is None else f"universal {version}",
        tensors=(
            *tensors,
            *(one for one in kept.values() if one is not None),
            *files.aliases(tensors),
            *buffers.values(),
        ),
        notes=files.notes(),
        values=values,
        step=files.get("global_steps"),
        sizes={"tensor": files.tensor_size, "data": int(files.get("dp_world_size") or 1)},
    )


def _untrained(files: ModelFiles) -> dict[str, ForeignTensor | None]:
    """Return the model files' own values; None: a further name of a parameter."""
    found: dict[str, ForeignTensor | None] = {}
    for mp in files.ranks if files.tensor_size == 1 else ():
        found |= dict.fromkeys(files.tied(mp))
        found |= {
            name: files.untrained(mp, name, shape) for name, shape in files.frozen(mp).items()
        }
    return found


def _shapes(files: ModelFiles) -> dict[str, tuple[int, ...]]:
    """Return shapes of whole parameters; of several tensor-parallel ranks they are in the files."""
    return {
        name: shape
        for mp in (files.ranks if files.tensor_size == 1 else ())
        for group in files.shapes(mp)
        for name, shape in group.items()
    }


def _folders(place: str, shapes: Mapping[str, Any]) -> Iterator[tuple[str, File]]:
    """Yield each parameter and its directory; raises `ForeignError` for one that is missing."""
    root = File(place, ZERO)
    there = sorted(path.name for path in root.iterdir() if path.is_dir())
    for name in sorted(shapes.keys() - set(there)):
        raise ForeignError(
            f"{root / name} is missing, and the model file lists the parameter: copy it"
        )
    for name in there:
        yield name, root / name


def _parameter(
    folder: File, name: str, shape: tuple[int, ...] | None, pickles: Pickles
) -> Iterator[ForeignTensor]:
    found = {path.name for path in folder.iterdir()}
    others = sorted(one.removesuffix(".pt") for one in found if one.endswith(".pt"))
    wanted = ["fp32", *(key for key in others if key not in ("fp32", "step"))]
    missing = next((key for key in MOMENTS if key not in wanted), None)
    if missing is not None and set(wanted) & {*MOMENTS}:
        raise ForeignError(f"{folder}/{missing}.pt is missing: copy the directory again")
    for key in wanted:
        path: Path = ("model", name) if key == "fp32" else ("optimizer", "state", name, key)
        yield _tensor(f"{folder}/{key}.pt", path, shape, pickles)


def _tensor(
    file: str, path: Path, shape: tuple[int, ...] | None, pickles: Pickles
) -> ForeignTensor:
    opened = _open(file, pickles)
    state = opened.state
    ref = state.get("param") if isinstance(state, Mapping) else state
    if not isinstance(ref, TensorRef):
        raise ForeignError(f"{file}: 'param' is no tensor: copy the file again")
    is_vocabulary = isinstance(state, Mapping) and state.get("vocab_tensor")
    due = ref.size if shape is None or is_vocabulary else shape
    if ref.count != math.prod(due) or (isinstance(state, Mapping) and ref.size != due):
        raise ForeignError(f"{file} has shape {ref.size}, its parameter {due}: copy the file again")
    # The file is not kept open: there may be thousands.
    return whole(path, ref.dtype, due, f"{file}: param", lambda: TorchArchive(file).tensor(ref))


def _open(file: str, pickles: Pickles) -> TorchFile:
    try:
        return TorchFile(pickles, file)
    except FileNotFoundError as error:
        raise ForeignError(f"{file} is missing: copy the directory again") from error


def _step(
    folder: File, name: str, settings: TorchFile, pickles: Pickles
) -> Iterator[ForeignTensor]:
    """Yield the optimizer's step of a parameter, as torch keeps it."""
    file, path = f"{folder}/step.pt", ("optimizer", "state", name, "step")
    if File(file).exists():
        opened = _open(file, pickles)
        yield from scalar(opened, path, opened.state)
    elif File(folder, f"{MOMENTS[0]}.pt").exists():
        inner = settings.state.get("optimizer_state_dict")
        state = inner.get("state", {}) if isinstance(inner, Mapping) else {}
        yield from scalar(settings, path, state.get(0, {}).get("step"))


def write(found: Checkpoint, folder: File, progress: Progress, *, version: float) -> None:
    """Write a universal checkpoint; raises `ForeignError`, OSError; the caller removes the folder.

    Every tensor of the model that is of floating point is written as fp32, as DeepSpeed loads it.
    """
    parameters = [one for one in found.tensors if one.path[0] == "model"]
    moments = {
        one.path[-2:]: one for one in found.tensors if one.path[:2] == ("optimizer", "state")
    }
    trained = {str(key[0]) for key in moments}
    _check(found, trained)
    steps = set[float]()
    shapes = OrderedDict[str, tuple[int, ...]]()
    buffers = dict[str, ForeignTensor]()
    for one in parameters:
        name = ".".join(map(str, one.path[1:]))
        if one.dtype not in _FLOATING or (trained and name not in trained):
            buffers[name] = one  # read when the model file is written
            continue
        shapes[name] = one.shape
        steps |= _write_parameter(folder / ZERO / name, name, one, moments, progress)
    if len(steps) > 1:
        raise ForeignError(f"parameters have steps {sorted(steps)}: DeepSpeed keeps one")
    _write_settings(found, folder, steps)
    state = _model_state(found, version, shapes, buffers)
    # Under the names that ZeRO-1/2 and ZeRO-3 look for.
    save(folder / "mp_rank_00_model_states.pt", state, progress)
    save(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", state)


def left_out(found: Checkpoint) -> tuple[str, ...]:
    """Return a note on the values that a universal checkpoint has no place for."""
    firsts = {str(path[0]) for path in found.values} - {"optimizer", "deepspeed"}
    return (
        (f"left out, DeepSpeed has no place for it: {', '.join(sorted(firsts))}",) if firsts else ()
    )


def _check(found: Checkpoint, trained: set[str]) -> None:
    names = {".".join(map(str, one.path[1:])) for one in found.tensors if one.path[0] == "model"}
    if odd := sorted(name for name in names if "/" in name or name in ("", ".", "..")):
        raise ForeignError(f"model.{odd[0]}: no directory can have this name")
    for one in found.tensors:
        placed = one.path[0] == "model" or one.path[:2] == ("optimizer", "param_groups")
        is_state = one.path[:2] == ("optimizer", "state") and one.path[-1] in (*MOMENTS, "step")
        if not placed and not is_state:
            raise ForeignError(
                f"{one.name}: a universal checkpoint has no place for it: DeepSpeed keeps "
                f"{', '.join(MOMENTS)} of an Adam; take the model only (--model-only)"
            )
    if lost := sorted(trained - names):
        raise ForeignError(f"optimizer.state.{lost[0]}: the model has no such parameter")


def _write_parameter(
    folder: File,
    name: str,
    weight: ForeignTensor,
    moments: Mapping[tuple[Any, ...], ForeignTensor],
    progress: Progress,
) -> set[float]:
    """Write a parameter's directory; return its step, if it has one."""
    folder.mkdir(parents=True)
    for key, one in [("fp32", weight), *((key, moments.get((name, key))) for key in MOMENTS)]:
        if one is None:
            continue
        if one.shape != weight.shape:
            raise ForeignError(f"{one.name}: {one.shape}, and its parameter {weight.shape}")
        save(folder / f"{key}.pt", {"cat_dim": 0, "param": one.load().float()})
        progress(one.bytes)
    step = moments.get((name, "step"))
    if step is None:
        return set()
    values = step.load()
    save(folder / "step.pt", values)
    progress(step.bytes)
    return {float(values)}


def _write_settings(found: Checkpoint, folder: File, steps: set[float]) -> None:
    import torch

    groups: dict[Any, dict[str, Any]] = {}
    for path, value in found.values.items():
        match path:
            case ("optimizer", "param_groups", number, setting):
                groups.setdefault(number, {})[str(setting)] = value
    for one in found.tensors:
        if one.path[:2] == ("optimizer", "param_groups"):
            groups.setdefault(one.path[2], {})[str(one.path[3])] = one.load()
    listed = [{**groups[key], "params": [at]} for at, key in enumerate(sorted(groups))]
    state = {0: {"step": torch.tensor(next(iter(steps), 0.0))}}
    inner = {"state": state, "param_groups": listed}
    settings = {
        "param_groups": listed,
        "ds_version": _version(found),
        "zero_stage": 1,
        "optimizer_state_dict": inner,
    }
    (folder / ZERO).mkdir(exist_ok=True)
    save(folder / ZERO / SETTINGS, settings)


def _version(found: Checkpoint) -> str:
    return str(found.values.get(("deepspeed", "ds_version"), _DS_VERSION))


def _model_state(
    found: Checkpoint,
    version: float,
    shapes: OrderedDict[str, tuple[int, ...]],
    buffers: Mapping[str, ForeignTensor],
) -> dict[str, Any]:
    import torch

    own = {str(path[1]): value for path, value in found.values.items() if path[0] == "deepspeed"}
    sizes = OrderedDict((name, torch.Size(shape)) for name, shape in shapes.items())
    return {
        "module": OrderedDict(buffers),
        "buffer_names": sorted(buffers),
        "param_shapes": [sizes],
        **dict.fromkeys(("optimizer", "frozen_param_shapes", "frozen_param_fragments")),
        **dict.fromkeys(("lr_scheduler", "data_sampler", "random_ltd")),
        "skipped_steps": 0,
        "global_steps": found.step or 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_version": _version(found),
        INFO: {VERSION: version},
        **{key: value for key, value in own.items() if key != "ds_version"},
    }
