"""State of a DeepSpeed engine besides weights and optimizer: counters, LR scheduler, loss scale.

Belongs here: these values under the first key `deepspeed`, which other frameworks pass over. Does
not belong here: random generators (the `Checkpointer` saves them), data loaders (`per_rank`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Final

from holdfast.flash.trainer.leaves import Leaves, StateError
from holdfast.flash.trainer.reshard import Filling

_ENGINE: Final = ("deepspeed", "engine")
_SCHEDULER: Final = ("deepspeed", "lr_scheduler")
_LOSS_SCALE: Final = ("deepspeed", "loss_scale")
_COUNTERS: Final = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
_OF_SCALER: Final = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Fields that a loss scaler changes while it trains; the rest is the configuration's."""


def collect_engine(leaves: Leaves, engine: Any) -> None:
    """List counters, scheduler and loss scale."""
    leaves.add_value(_ENGINE, lambda: _counters(engine))
    if engine.lr_scheduler is not None:
        leaves.add_value(_SCHEDULER, lambda: _scheduler(engine))
    if _scaler(engine) is not None:
        leaves.add_value(_LOSS_SCALE, lambda: _loss_scale(engine))


def refuse_half_a_step(engine: Any) -> None:
    """Raise `StateError` while gradients are accumulated: they are no part of a checkpoint."""
    every = engine.gradient_accumulation_steps()
    if engine.managed_gradient_accumulation():
        left = engine.micro_steps % every
    else:
        left = engine._unmanaged_backward_count  # noqa: SLF001 - the only place that knows
    if left:
        raise StateError(
            f"gradients of {left} of {every} micro-batches are accumulated, and are no part of a "
            "checkpoint: save after the engine.step() that ends the accumulation"
        )


def _counters(engine: Any) -> dict[str, int]:
    refuse_half_a_step(engine)
    found = {key: int(getattr(engine, key)) for key in _COUNTERS}
    return {**found, "gradient_accumulation_steps": int(engine.gradient_accumulation_steps())}


def warn_of_another_scheduler(engine: Any, saved: Iterable[Any]) -> None:
    """Warn of a scheduler of torch that steps this optimizer, and that nobody saves.

    The engine does not know one that the script, or Accelerate, steps itself.

    saved: what a script saves beside the engine.
    """
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    has_one = hasattr(getattr(inner, "step", None), "_wrapped_by_lr_sched")  # torch marks it so
    known = [getattr(one, "scheduler", one) for one in (engine.lr_scheduler, *saved)]
    marks = ("last_epoch", "_schedulers")  # a ChainedScheduler has the latter only
    if has_one and not any(hasattr(one, mark) for one in known for mark in marks):
        warnings.warn(
            "an LR scheduler steps the engine's optimizer, and is neither the engine's nor in "
            "extra: it would begin anew after a restart. Give it to deepspeed.initialize("
            'lr_scheduler=...), or pass extra={"scheduler": scheduler}',
            RuntimeWarning,
            stacklevel=3,
        )


def _scheduler(engine: Any) -> dict[str, Any]:
    scheduler = engine.lr_scheduler
    return {"class": type(scheduler).__name__, "state": scheduler.state_dict()}


def _scaler(engine: Any) -> Any:
    return getattr(engine.optimizer, "loss_scaler", None)


def _loss_scale(engine: Any) -> dict[str, Any]:
    scaler, amp = _scaler(engine), getattr(engine.optimizer, "torch_autocast_gradscaler", None)
    held = {key: getattr(scaler, key) for key in _OF_SCALER if hasattr(scaler, key)}
    found: dict[str, Any] = {"dynamic": bool(scaler.dynamic), "state": held}
    return found if amp is None else {**found, "autocast": amp.state_dict()}


def accept_engine(filling: Filling, engine: Any) -> None:
    """Note a scheduler of another class, and what begins anew."""
    here = engine.lr_scheduler
    saved = _saved_scheduler(filling, here)
    if here is None:
        if saved is not None:
            filling.notes.append(
                f"the checkpoint's {saved['class']} is left out: this engine has no LR scheduler, "
                "so the learning rate stays as it was saved"
            )
        return
    kind = type(here).__name__
    if saved is None:
        filling.notes.append(f"{kind} begins anew: the checkpoint has no deepspeed.lr_scheduler")
    elif saved["class"] != kind:
        filling.wrong.append(
            f"{'.'.join(_SCHEDULER)} is a {saved['class']} in the checkpoint, a {kind} here: "
            f"configure {saved['class']}, or take load(partial=True)"
        )


def finish_engine(filling: Filling, engine: Any) -> None:
    """Set counters, scheduler and loss scale to the stored ones, where the checkpoint has them."""
    values = filling.values
    counters = values.get(".".join(_ENGINE)) or _counted(engine, filling)
    every = engine.gradient_accumulation_steps()
    for key in _COUNTERS:
        setattr(engine, key, counters[key])
    if every != counters["gradient_accumulation_steps"]:
        engine.micro_steps = counters["global_steps"] * every  # as after a whole accumulation
    here = engine.lr_scheduler
    saved = _saved_scheduler(filling, here)
    if saved is not None and here is not None and saved["class"] == type(here).__name__:
        here.load_state_dict(saved["state"])
    if scale := values.get(".".join(_LOSS_SCALE)):
        _set_scale(engine, scale)


def _saved_scheduler(filling: Filling, here: Any) -> dict[str, Any] | None:
    """Return class and state of the saved scheduler.

    A checkpoint of DeepSpeed's own that was converted tells no class: it is taken for this engine's
    if it has the state of one.
    """
    saved: dict[str, Any] | None = filling.values.get(".".join(_SCHEDULER))
    if saved is None or saved.keys() == {"class", "state"}:
        return saved
    fits = here is not None and saved.keys() == here.state_dict().keys()
    return {"class": type(here).__name__ if fits else "scheduler", "state": saved}


def _counted(engine: Any, filling: Filling) -> dict[str, int]:
    """Return the counters of a step that DeepSpeed itself saved, or another framework.

    Of the latter they are guessed as DeepSpeed does.
    """
    every, step = engine.gradient_accumulation_steps(), filling.step
    guessed = {
        "global_steps": step,
        "global_samples": step * engine.train_batch_size(),
        "skipped_steps": 0,
        "micro_steps": step * every,
    }
    own = {key: filling.values.get(f"{_ENGINE[0]}.{key}", value) for key, value in guessed.items()}
    return {**own, "gradient_accumulation_steps": every}


def _set_scale(engine: Any, saved: dict[str, Any]) -> None:
    """Take the loss scale where both are dynamic; a static one is the configuration's."""
    scaler, amp = _scaler(engine), getattr(engine.optimizer, "torch_autocast_gradscaler", None)
    if scaler is not None and scaler.dynamic and saved["dynamic"]:
        for key, value in saved["state"].items():
            setattr(scaler, key, value)
    if amp is not None and "autocast" in saved:
        amp.load_state_dict(saved["autocast"])
