"""The `Checkpointer` of a script that trains with DeepSpeed, and the engine's two calls through it.

DeepSpeed's own `CheckpointEngine` writes and reads one file per rank: what it loads must have been
saved by the same world and stage. So `engine.save_checkpoint` and `engine.load_checkpoint` are
replaced, on one engine.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.environment import Environment
from holdfast.flash import checkpointer
from holdfast.flash.storage import retention
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import newest_of, read_manifest_or_none
from holdfast.flash.trainer.collectives import from_rank_0
from holdfast.flash.trainer.restore import RestoreError
from holdfast.flash.trainer.values import encode_value
from holdfast.integrations.committed_step import fill_from
from holdfast.integrations.deepspeed.engine_state import (
    refuse_half_a_step,
    warn_of_another_scheduler,
)
from holdfast.integrations.deepspeed.shards import EngineShards
from holdfast.job import Action


class EngineCheckpointer(checkpointer.Checkpointer):
    """Saves a DeepSpeed engine to memory and storage, and restores it.

    ```python
    engine, *_ = deepspeed.initialize(model=model, config=config, ...)
    flash = holdfast.integrations.deepspeed.Checkpointer("/shared/run", engine)
    for step in range(flash.load(), steps):
        train_step(engine)
        if flash.step(step + 1, samples=n, loss=loss) is holdfast.SAVE_AND_STOP:
            break
    flash.close()
    ```

    A save gathers nothing and calls no collective: each rank copies its own partitions. Any world
    and any of the stages 1, 2 and 3 loads what another one saved, and so do DDP and FSDP2 with
    `holdfast.Checkpointer`. A step is one `engine.step()` that updates the weights.
    """

    def __init__(self, path: str | os.PathLike[str] | None, engine: Any, **options: Any) -> None:
        """Take the directory and the engine; nothing is copied yet.

        Args:
            path: As in `holdfast.Checkpointer`.
            engine: What `deepspeed.initialize` returned first.
            options: `extra`, `per_rank`, `schedule` and the others of `holdfast.Checkpointer`. The
                engine's LR scheduler is no part of `extra`: it is saved with the engine.
        """
        super().__init__(path, shards=EngineShards(engine), **options)
        beside = (self._parts.extra, self._parts.per_rank)
        warn_of_another_scheduler(engine, [one for part in beside for one in part.values()])
        self._engine = engine

    def step(
        self, step: int, *, samples: int = 0, loss: Any = None, fingerprint: int | None = None
    ) -> Action:
        """Report a completed step, and save it if it is due; see `holdfast.Checkpointer.step`.

        Raises:
            StateError: gradients of micro-batches are accumulated; call it after the
                `engine.step()` that updates the weights.
        """
        refuse_half_a_step(self._engine)  # here, since it is so on all ranks
        return super().step(step, samples=samples, loss=loss, fingerprint=fingerprint)

    def save(self, step: int, *, durable: bool = True, tag: str | None = None) -> None:
        """Save the present state now; see `holdfast.Checkpointer.save`.

        Raises:
            StateError: also while gradients of micro-batches are accumulated.
        """
        refuse_half_a_step(self._engine)
        super().save(step, durable=durable, tag=tag)

    def load_step(self, step: int) -> None:
        """Fill the engine from one committed step of the directory; all ranks call it.

        A later save must have a step above the directory's newest: go on in another directory, or
        delete the newer steps, to train on from an older one.

        Args:
            step: A step whose directory `step_<n>` is there.

        Raises:
            RestoreError: there is no such step, it is damaged, or it does not fit the engine, which
                is unchanged.
        """
        disk, world = Disk(), self._place.world
        self._preparer.meet(again=True)
        notes, self.read = fill_from(self._root, step, self._parts, self._place, self._preparer)
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        newest = from_rank_0(newest_of(disk, self._root), world)
        self._order.begin_at(newest)
        if manifest := read_manifest_or_none(disk, f"{self._root}/step_{newest}"):
            self._lineage = max(self._lineage, manifest.version.lineage + 1)


_LATEST: Final = "latest"
"""DeepSpeed's file with the newest tag; other tools read it."""
_DEFAULTS: Final = {
    "load_module_strict": True,
    "load_optimizer_states": True,
    "load_lr_scheduler_states": True,
    "load_module_only": False,
    "custom_load_fn": None,
}
"""Further arguments of `engine.load_checkpoint`, in its order."""
_DISK: Final = Disk()


def plug_in(engine: Any, **options: Any) -> PluggedIn:
    """Have `engine.save_checkpoint` and `engine.load_checkpoint` use Holdfast from now on.

    A directory without a step of Holdfast's is loaded by DeepSpeed itself, so that a run with old
    checkpoints moves over at its next save.

    Args:
        engine: What `deepspeed.initialize` returned first.
        options: `per_rank`, `schedule` and the others of `holdfast.Checkpointer`, but `extra`.

    Returns:
        What the engine uses; `close()` it at the end, or let the process end.
    """
    plugged = PluggedIn(engine, options)
    engine.save_checkpoint = plugged.save_checkpoint
    engine.load_checkpoint = plugged.load_checkpoint
    return plugged


class PluggedIn:
    """The two calls of one engine."""

    def __init__(self, engine: Any, options: Mapping[str, Any]) -> None:
        self._engine, self._options = engine, dict(options)
        self._own_load: Callable[..., Any] = engine.load_checkpoint
        self._client: dict[str, Any] = {"client_state": {}}
        self._flash: EngineCheckpointer | None = None
        self._folder = ""
        self._started = False
        """True: this world has asked what it starts from, or saved a step: that comes once."""
        self._known: tuple[int, bytes] | None = None
        """The folder's step that was loaded or saved last, and its `client_state`."""

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: Any = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,  # noqa: FBT001, FBT002 - DeepSpeed's own signature
        exclude_frozen_parameters: bool = False,  # noqa: FBT001, FBT002
    ) -> bool:
        """Save the engine as step `global_steps`, durable when this returns.

        Args:
            save_dir: Directory of the checkpoints; one for an engine.
            tag: Keeps the step for good, and names it; by default `global_step<n>`.
            client_state: Plain data of the script, equal on all ranks.
            save_latest: Write the tag into the file `latest`.
            exclude_frozen_parameters: Must be False.

        Returns:
            True, as DeepSpeed does.

        Raises:
            ValueError: an argument asks for what this does not do, no step was taken yet, or the
                step is saved already with another `client_state`.
            CheckpointError, StateError: see `holdfast.Checkpointer.save`.
        """
        if exclude_frozen_parameters:
            raise ValueError("exclude_frozen_parameters=True: Holdfast saves the whole model")
        step = self._engine.global_steps
        if not step:
            raise ValueError("engine.global_steps is 0: there is nothing to save before a step")
        name = f"global_step{step}" if tag is None else str(tag)
        flash = self._checkpointer(save_dir)
        state = dict(client_state or {})
        self._refuse_other(step, state)
        self._client["client_state"] = state
        flash.save(step, tag=name)
        flash.wait(step)
        self._started = True
        self._known = step, _encoded(state)
        if save_latest and self._engine.global_rank == 0:
            (Path(self._folder) / _LATEST).write_text(name, encoding="utf-8")
        return True

    def _refuse_other(self, step: int, state: Mapping[str, Any]) -> None:
        """Refuse another `client_state` for a step that is saved: the step would keep the first."""
        known, saved = self._known or (0, b"")
        if known == step and saved != _encoded(state):
            raise ValueError(
                f"client_state={state!r}: step {step} is saved already, with another one. A second "
                "tag of a step shares its state: pass the same client_state, or train a step in "
                "between"
            )

    def load_checkpoint(
        self, load_dir: str | os.PathLike[str], tag: Any = None, *more: Any, **choices: Any
    ) -> tuple[str | None, Any]:
        """Fill the engine from the newest step, or from that of a tag; all ranks call it.

        Args:
            load_dir: Directory of the checkpoints.
            tag: As at the save; None: the newest step, which may be newer than `latest` says.
            more: DeepSpeed's further arguments, by position.
            choices: The same by name. For Holdfast's steps only their defaults are possible;
                DeepSpeed's own get them as they are.

        Returns:
            Directory of the step and the script's `client_state`; (None, None): there is no
            checkpoint.

        Raises:
            ValueError: an argument asks for what this does not do.
            RestoreError: there is no such checkpoint, or it does not fit the engine, which is
                unchanged.
        """
        choices |= dict(zip(_DEFAULTS, more, strict=False))
        path = _absolute(load_dir)
        wanted = self._from_rank_0(
            _tagged(path, tag) if tag is not None else newest_of(_DISK, path)
        )
        changed = {key: value for key, value in choices.items() if value != _DEFAULTS.get(key)}
        if wanted and changed:
            _refuse(changed)
        if not wanted and (tag is not None or changed):
            return self._of_deepspeed(path, tag, choices)
        step = self._newest(path) if tag is None else self._filled(path, wanted)
        if not step:
            return self._of_deepspeed(path, tag, choices)
        client = dict(self._client["client_state"])
        self._known = step, _encoded(client)
        return f"{path}/step_{step}", client

    def _newest(self, path: str) -> int:
        """Fill the engine from this world's first step, or from the newest one; 0: none."""
        flash = self._checkpointer(path)
        if not self._started:
            self._started = True
            return flash.load()
        step = self._from_rank_0(flash.latest())
        return self._filled(path, step) if step else 0

    def _filled(self, path: str, step: int) -> int:
        self._checkpointer(path).load_step(step)
        return step

    def close(self) -> None:
        """Wait for steps on their way to storage, and release server and memory."""
        if self._flash is not None:
            self._flash.close()
        self._flash = None

    def _of_deepspeed(
        self, path: str, tag: Any, choices: Mapping[str, Any]
    ) -> tuple[str | None, Any]:
        """Have DeepSpeed load its own checkpoint; name what is there if there is no such one."""
        universal = bool(self._engine.load_universal_checkpoint())
        name = _text(path, f"{_LATEST}_universal" if universal else _LATEST)
        wanted = name if tag is None else str(tag)
        if wanted and not self._from_rank_0(int(Path(path, wanted).is_dir())):
            whose = f"{path}/{_LATEST} names " if tag is None else "tag="
            raise RestoreError(
                f"{whose}{wanted!r}: {path} has no whole step of Holdfast's under this tag, and no "
                f"folder of DeepSpeed's with this name; tags there: {_names(path)}"
            )
        found: tuple[str | None, Any] = self._own_load(path, tag, **choices)
        return found

    def _from_rank_0(self, number: int) -> int:
        """Return rank 0's number: files may show themselves to another rank a moment later."""
        return from_rank_0(number, Environment.read().world_size)

    def _checkpointer(self, folder: str | os.PathLike[str]) -> EngineCheckpointer:
        path = _absolute(folder)
        if path != self._folder and self._known:
            raise ValueError(
                f"{path}: this engine's checkpoints are in {self._folder}; one engine has one "
                "directory, and tags name its checkpoints"
            )
        if path != self._folder:
            self.close()
            self._started = False
        if self._flash is None:
            # The extra's values are read at each save: the mapping stays the same.
            self._flash = EngineCheckpointer(
                path, self._engine, extra=self._client, **self._options
            )
            self._folder = path
        return self._flash


def _absolute(folder: str | os.PathLike[str]) -> str:
    return os.fspath(Path(folder).absolute())


def _encoded(client_state: Mapping[str, Any]) -> bytes:
    return encode_value("client_state", client_state)


def _refuse(changed: Mapping[str, Any]) -> None:
    told = ", ".join(f"{key}={value!r}" for key, value in changed.items())
    raise ValueError(
        f"{told}: Holdfast loads the whole state; leave out {', '.join(changed)}, or load parts "
        "with torch.distributed.checkpoint"
    )


def _tagged(path: str, tag: Any) -> int:
    """Return the step that a tag names; 0: none, or the tag cannot be one of Holdfast's."""
    try:
        return retention.step_of_tag(_DISK, path, retention.tag_of(str(tag)))
    except ValueError:
        return 0


def _text(path: str, file: str) -> str:
    try:
        return Path(path, file).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _names(path: str) -> str:
    """Return the tags of Holdfast's steps in words."""
    found = sorted(one.name for one in Path(path, retention.TAGS_FOLDER).glob("*"))
    return ", ".join(name for name in found if _tagged(path, name)) or "none"
