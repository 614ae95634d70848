"""Megatron's `save_checkpoint` and `load_checkpoint`, with its arguments, on the flash checkpoint.

```python
# from megatron.training.checkpointing import load_checkpoint
# from megatron.training.checkpointing import save_checkpoint
from holdfast.integrations.megatron import load_checkpoint, save_checkpoint
```

A save returns when the state is copied; the write goes on beside the training. A process that ends
without an error waits for it. `args.save` gets Holdfast's `step_<n>`, links `iter_<n>` to them, and
`latest_checkpointed_iteration.txt`.

Belongs here: what the arguments mean.
"""

from __future__ import annotations

import atexit
import operator
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.flash.checkpointer import Checkpointer
from holdfast.flash.storage.commit import write_whole
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import steps
from holdfast.flash.trainer.client import CheckpointError
from holdfast.flash.trainer.leaves import Stateful
from holdfast.flash.trainer.restore import RestoreError
from holdfast.flash.trainer.shards import Shards
from holdfast.integrations.committed_step import load_from
from holdfast.integrations.megatron.arguments import (
    OF_LOAD,
    OF_SAVE,
    TrainingPosition,
    megatron_args,
    model_arguments,
    refuse_arguments,
    refuse_unknown,
)
from holdfast.integrations.megatron.random_states import RandomStates
from holdfast.integrations.megatron.shards import MegatronShards, owner_of

_PROGRESS: Final = "progress"
_SCHEDULER: Final = "opt_param_scheduler"
_ALL: Final = 1
"""`keep_every` of a run without `--save-retain-interval`: Megatron deletes nothing."""


_State = tuple[Any, Any, Any]
"""Model chunks, optimizer, scheduler: as Megatron's functions take them."""


class _Run:
    """A job's own directory, from the first call on."""

    def __init__(self, root: str, args: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
        self.root = root
        self._of = _flat(model, optimizer, scheduler)
        self.progress = TrainingPosition(args)
        self._links = True
        kept = getattr(args, "save_retain_interval", None)
        if getattr(args, "no_save_optim", None):
            _refuse_replicas(optimizer)
            optimizer = None
        objects = _objects(self.progress, scheduler)
        self.flash = Checkpointer(
            root,
            shards=_shards(model, optimizer, objects, model_arguments(args)),
            keep_every=_ALL if kept is None else kept,
            keep_last=1,
        )
        atexit.register(self._end)

    def is_of(self, model: Sequence[Any], optimizer: Any, scheduler: Any) -> bool:
        """Return True if these are the objects that this run saves and fills."""
        given = _flat(model, optimizer, scheduler)
        return len(given) == len(self._of) and all(map(operator.is_, given, self._of))

    def show(self) -> None:
        """Let links and text follow the commits, on rank 0."""
        if int(os.environ.get("RANK", "0")) or not self._links:
            return
        try:
            show(self.root)
        except OSError as error:
            self._links = False
            warnings.warn(
                f"{self.root}: no iteration folders, only step_<n>: {error}",
                RuntimeWarning,
                stacklevel=3,
            )

    def close(self) -> None:
        """Wait until the steps on their way are durable, and release the memory."""
        atexit.unregister(self._end)
        self.flash.close()
        self.show()

    def _end(self) -> None:
        if hasattr(sys, "last_type"):
            return  # it ends with an error: the other ranks may never save what it waits for
        try:
            self.close()
        except CheckpointError as error:
            warnings.warn(f"a checkpoint was not kept: {error}", RuntimeWarning, stacklevel=2)


def _flat(model: Any, *others: Any) -> list[Any]:
    return [*(model if isinstance(model, list | tuple) else [model]), *others]


_runs: dict[str, _Run] = {}
"""Real path of a directory → the job's run there."""


def save_checkpoint(
    iteration: int,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float = 0,
    *_: Any,
    non_persistent_ckpt: bool = False,
    release: bool = False,
    **more: Any,
) -> None:
    """Save this iteration to memory, and to `args.save` unless `non_persistent_ckpt`.

    Megatron's other parameters have no meaning here: every rank writes its own boxes, and a data
    loader's state is not saved with them.

    Args:
        iteration: Completed iterations, from 1 on.
        model: The model chunks.
        optimizer: Megatron's optimizer; see `MegatronShards`.
        opt_param_scheduler: Its scheduler, or None.
        num_floating_point_operations_so_far: It goes back with a load.
        non_persistent_ckpt: Save to memory only: it survives a lost process, not a lost job.
        release: Must be False.
        more: Megatron's further parameters.

    Raises:
        CheckpointError: a later iteration is there, or there is too little memory.
        StateError: the state has a part that cannot be saved.
        ValueError: `args.save` is not set, or `release` or `args.use_checkpoint_args` is.
        TypeError: Megatron's function has no such parameter.
    """
    args = megatron_args()
    refuse_unknown("save_checkpoint", more, OF_SAVE)
    refuse_arguments(args)
    if release:
        raise ValueError("release=True: a release has no iteration; copy its step's directory")
    if not args.save:
        raise ValueError("save=None: set --save to the directory of the checkpoints")
    run = _run(args.save, args, model, optimizer, opt_param_scheduler)
    run.progress.iteration = iteration
    run.progress.operations = num_floating_point_operations_so_far
    run.flash.save(iteration, durable=not non_persistent_ckpt)
    run.show()


def load_checkpoint(
    ddp_model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    load_arg: str = "load",
    strict: bool = True,  # noqa: FBT001, FBT002 - Megatron's signature
    *_: Any,
    **more: Any,
) -> tuple[int, float]:
    """Fill model, optimizer, scheduler and random generators, whatever layout saved them.

    A job goes on from its own directory, `args.save`, once that has a checkpoint. Before, and for
    a model without an optimizer or with another `load_arg`, the directory `load_arg` is read, of
    which `finetune`, `no_load_optim`, `no_load_rng` and `ckpt_step` say what is taken. While that
    one has none, `pretrained_checkpoint` begins a finetuning.

    Args:
        ddp_model: The model chunks.
        optimizer: Megatron's optimizer; None: the model is none that this job trains.
        opt_param_scheduler: Its scheduler, or None.
        load_arg: The argument with the directory.
        strict: False: load what fits, and leave the rest as it is.
        more: Megatron's further parameters.

    Returns:
        Iteration and floating point operations so far; (0, 0): there is no checkpoint.

    Raises:
        RestoreError: the checkpoint does not fit: another model, another optimizer. The model is
            not changed. Another layout is no error.
        ValueError: arguments contradict each other.
        TypeError: Megatron's function has no such parameter.
    """
    args, state = megatron_args(), (ddp_model, optimizer, opt_param_scheduler)
    refuse_unknown("load_checkpoint", more, OF_LOAD)
    refuse_arguments(args)
    if more.get("skip_load_to_model_and_opt"):
        raise ValueError("skip_load_to_model_and_opt=True: model and optimizer are always filled")
    source = getattr(args, load_arg, None) or ""
    home = getattr(args, "save", None) or ""
    if home and optimizer is not None and load_arg == "load":
        begun = _go_on(args, home, source, state, partial=not strict)
        if begun or (source and _real(source) == _real(home)):
            return begun or _pretrained(args, home, state, partial=not strict)
    return _begin(args, source, state, partial=not strict)


def _go_on(
    args: Any, home: str, source: str, state: _State, *, partial: bool
) -> tuple[int, float] | None:
    """Go on from the newest step of the job's own directory; None: it has none yet."""
    limits = _limits(args)
    if source and limits and _real(source) == _real(home):
        raise ValueError(
            f"{', '.join(limits)} with --save and --load {source}: a job goes on from the "
            "directory that it saves to; give --save another one"
        )
    _refuse_foreign(home)
    run = _run(home, args, *state)
    step = run.flash.load(partial=partial)
    run.show()
    return (run.progress.iteration, run.progress.operations) if step else None


def _begin(args: Any, source: str, state: _State, *, partial: bool) -> tuple[int, float]:
    """Start from a directory that the job does not save to."""
    finetune = bool(getattr(args, "finetune", False))
    step = getattr(args, "ckpt_step", None)
    if source:
        _refuse_foreign(source)
        found = _from(args, source, state, finetune=finetune, step=step, partial=partial)
        if found is not None:
            return found
    return _pretrained(args, source, state, partial=partial)


def _pretrained(args: Any, source: str, state: _State, *, partial: bool) -> tuple[int, float]:
    """Begin a finetuning while the other directories have no checkpoint; (0, 0): nothing is set."""
    pretrained = getattr(args, "pretrained_checkpoint", None)
    if not pretrained:
        if source and getattr(args, "exit_on_missing_checkpoint", False):
            raise FileNotFoundError(
                f"{source} has no checkpoint, and --exit-on-missing-checkpoint is on"
            )
        return 0, 0
    _refuse_foreign(pretrained)
    found = _from(args, pretrained, state, finetune=True, step=None, partial=partial)
    if found is None:
        raise FileNotFoundError(f"{pretrained} (--pretrained-checkpoint) has no checkpoint")
    args.finetune = True  # as Megatron sets it
    return found


def _shards(
    model: Any, optimizer: Any, objects: dict[str, Any], constants: dict[str, Any]
) -> Shards:
    """Return the state; with local SGD, that of a replica beside the others'."""
    owner = owner_of(optimizer)
    if owner is not None:
        return owner.shards(objects, constants)
    return MegatronShards(model, optimizer, objects, constants)


def _refuse_replicas(optimizer: Any) -> None:
    if owner_of(optimizer) is not None:
        raise ValueError(
            "--no-save-optim: with local SGD the replicas' weights differ, and anchors and masters "
            "are a part of the optimizer's state; leave it out"
        )


def _from(
    args: Any, source: str, state: _State, *, finetune: bool, step: int | None, partial: bool
) -> tuple[int, float] | None:
    """Fill what is wanted from a directory; None: it has no checkpoint."""
    model, optimizer, scheduler = state
    bare = finetune or bool(getattr(args, "no_load_optim", None))
    progress, keep = TrainingPosition(args), RandomStates().freeze()
    shards = _shards(
        model,
        None if bare else optimizer,
        {} if finetune else _objects(progress, None if bare else scheduler),
        model_arguments(args),
    )
    found = load_from(source, shards, step=step, partial=partial)
    if finetune or getattr(args, "no_load_rng", None):
        keep()
    if found and bare and optimizer is not None:
        optimizer.reload_model_params()
    return (progress.iteration, progress.operations) if found else None


def _objects(progress: TrainingPosition, scheduler: Any) -> dict[str, Stateful]:
    """Return the values saved beside model and optimizer."""
    found: dict[str, Stateful] = {_PROGRESS: progress}
    return found if scheduler is None else {**found, _SCHEDULER: scheduler}


def _limits(args: Any) -> list[str]:
    """Return the options that take only a part of a checkpoint, or no newest one."""
    names = ("finetune", "no_load_optim", "no_load_rng", "ckpt_step")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name, None)]


def _run(root: str, args: Any, model: Any, optimizer: Any, scheduler: Any) -> _Run:
    """Return the run of a directory; one for other objects than those given ends first."""
    path, state = _real(root), (model, optimizer, scheduler)
    if path in _runs and not _runs[path].is_of(*state):
        _runs.pop(path).close()
    if path not in _runs:
        _runs[path] = _Run(path, args, *state)
    return _runs[path]


def _real(root: str) -> str:
    return str(Path(root).resolve())


def _refuse_foreign(root: str) -> None:
    if is_megatrons(root):
        raise RestoreError(
            f"{root} has checkpoints of Megatron's own format ({LATEST}, and no step_<n>): load "
            "them once with megatron.training.checkpointing.load_checkpoint, and save with this "
            "save_checkpoint to another directory"
        )


def finish() -> None:
    """Wait until all saves are durable, and release the memory; the process may then end at once.

    Raises:
        CheckpointError: a step did not become durable.
    """
    while _runs:
        _runs.popitem()[1].close()


LATEST: Final = "latest_checkpointed_iteration.txt"


def show(root: str) -> None:
    """Let links and text name the committed steps; for one process of a world. Raises OSError."""
    disk = Disk()
    there = steps(disk, root)
    wanted = {f"iter_{step:07d}": f"step_{step}" for step in there}
    for link in Path(root).glob("iter_*"):
        if link.is_symlink() and link.name not in wanted:
            link.unlink()  # retention has deleted the step
    for name, target in wanted.items():
        link = Path(root, name)
        if not link.is_symlink() and not link.exists():
            link.symlink_to(target)
    if there and _text(root) != str(there[-1]):
        text = str(there[-1]).encode()
        write_whole(disk, root, LATEST, memoryview(text), len(text))


def is_megatrons(root: str) -> bool:
    """Return True if a directory has checkpoints of Megatron's own format, and none of Holdfast."""
    return bool(_text(root)) and not steps(Disk(), root)


def _text(root: str) -> str:
    try:
        return Path(root, LATEST).read_text().strip()
    except FileNotFoundError:
        return ""
