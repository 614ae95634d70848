"""A script that makes Megatron's two calls as a test lists them: a job of `jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_worlds.gpt import Setup, Training, build, fresh, step, weights
from megatron_worlds.jobs import use_arguments


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Do one call after another; tell what each returned or raised, and the weights after it.

    A call is (name, arguments by name, name of the training it is about: "first" or "other").
    """
    from holdfast.integrations.megatron import checkpointing

    first = build(Setup(**world.get("setup", {})), world.get("seed", 1))
    trainings = {"first": first, "other": fresh(first)}
    told: list[dict[str, Any]] = []
    number = 0
    for name, given, whose in world["calls"]:
        training = trainings[whose]
        if name == "use":
            use_arguments(**given)
        elif name == "step":
            step(training, number)
            number += 1
        elif name == "set":
            vars(training.scheduler).update(given)
        elif name == "finish":
            checkpointing.finish()
        else:
            told.append(_called(name, given, training))
    pipe.send({"told": told})
    checkpointing.finish()


def _called(name: str, given: dict[str, Any], training: Training) -> dict[str, Any]:
    from holdfast.integrations import megatron

    iteration = [given.pop("iteration")] if "iteration" in given else []
    alone = given.pop("alone", False)
    state = training.chunks, *((None, None) if alone else (training.optimizer, training.scheduler))
    before = weights(training)
    try:
        found = {"returned": getattr(megatron, name)(*iteration, *state, **given)}
    except Exception as error:  # noqa: BLE001 - it is what the test is to see
        found = {"raised": f"{type(error).__name__}: {error}"}
    after = weights(training)
    done = training.scheduler.num_steps
    return {**found, "weights": after, "untouched": after == before, "scheduled": done}
