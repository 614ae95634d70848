"""`engine.save_checkpoint` and `engine.load_checkpoint` through Holdfast, calls unchanged.

DeepSpeed's own `CheckpointEngine` writes and reads one file per rank: what it loads must have been
saved by the same world and stage. So it is the two calls that are replaced, on one engine. Does not
belong here: the `Checkpointer` that they use (`checkpointer`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.integrations.deepspeed.checkpointer import Checkpointer

_LATEST: Final = "latest"
"""DeepSpeed's file with the newest tag; other tools read it."""
_DEFAULTS: Final = {
    "load_module_strict": True,
    "load_optimizer_states": True,
    "load_lr_scheduler_states": True,
    "load_module_only": False,
    "custom_load_fn": None,
}


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
        """Take the engine and options of the `Checkpointer`; each directory makes one."""
        self._engine, self._options = engine, dict(options)
        self._own_load: Callable[..., Any] = engine.load_checkpoint
        self._client: dict[str, Any] = {"client_state": {}}
        self._flash: Checkpointer | None = None
        self._folder = ""
        self._started = False

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
            ValueError: an argument asks for what this does not do.
            CheckpointError, StateError: see `holdfast.Checkpointer.save`.
        """
        if exclude_frozen_parameters:
            raise ValueError("exclude_frozen_parameters=True: Holdfast saves the whole model")
        step = self._engine.global_steps
        name = f"global_step{step}" if tag is None else str(tag)
        flash = self._checkpointer(save_dir)
        self._client["client_state"] = dict(client_state or {})
        flash.save(step, tag=name)
        flash.wait(step)
        self._started = True
        if save_latest and self._engine.global_rank == 0:
            (Path(self._folder) / _LATEST).write_text(name, encoding="utf-8")
        return True

    def load_checkpoint(
        self, load_dir: str | os.PathLike[str], tag: Any = None, **choices: Any
    ) -> tuple[str | None, Any]:
        """Fill the engine from the newest step, or from that of a tag.

        Args:
            load_dir: Directory of the checkpoints.
            tag: As at the save; None: the newest step, which may be newer than `latest` says.
            choices: DeepSpeed's further arguments; only their defaults are possible.

        Returns:
            Directory of the step and the script's `client_state`; (None, None): there is no
            checkpoint.

        Raises:
            ValueError: an argument asks for what this does not do.
            RestoreError: the checkpoint does not fit the engine; it is unchanged.
        """
        for key, value in choices.items():
            if key not in _DEFAULTS or value != _DEFAULTS[key]:
                raise ValueError(
                    f"{key}={value!r}: Holdfast loads the whole state; leave out {key}, or load "
                    "parts with torch.distributed.checkpoint"
                )
        flash = self._checkpointer(load_dir)
        wanted = 0 if tag is None else flash.latest(str(tag))
        if tag is not None and not wanted:
            return self._of_deepspeed(load_dir, tag)
        start = 0 if self._started else flash.load()
        self._started = True
        step = wanted or start or flash.latest()
        if not step:
            return self._of_deepspeed(load_dir, tag)
        if step != start:
            flash.load_step(step)
        return f"{self._folder}/step_{step}", dict(self._client["client_state"])

    def close(self) -> None:
        """Wait for steps on their way to storage, and release server and memory."""
        if self._flash is not None:
            self._flash.close()
        self._flash = None

    def _of_deepspeed(self, folder: str | os.PathLike[str], tag: Any) -> tuple[str | None, Any]:
        found: tuple[str | None, Any] = self._own_load(os.fspath(folder), tag)
        return found

    def _checkpointer(self, folder: str | os.PathLike[str]) -> Checkpointer:
        path = os.fspath(Path(folder).absolute())
        if self._flash is None:
            # The extra's values are read at each save: the mapping stays the same.
            self._flash = Checkpointer(path, self._engine, extra=self._client, **self._options)
            self._folder = path
        if path != self._folder:
            raise ValueError(
                f"{path}: this engine's checkpoints are in {self._folder}; one engine has one "
                "directory, and tags name its checkpoints"
            )
        return self._flash
