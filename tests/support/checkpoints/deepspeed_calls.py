"""A script with DeepSpeed's own two calls, as a test lists them: a job of `deepspeed_world`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from checkpoints.deepspeed_world import engine_of, train, weights


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Do one call after another; tell what each returned or raised, and if the engine changed."""
    import torch.distributed as dist

    from holdfast.integrations.deepspeed import plug_in

    engine = engine_of(world)
    plugged = plug_in(engine)
    told, spoiled = list[dict[str, Any]](), False
    for name, arguments, given in world["calls"]:
        before = "" if spoiled else weights(engine)
        if name == "train":
            train(world, engine, engine.global_steps, 1)
        elif name == "spoil" and dist.get_rank() in given["ranks"]:
            _SPOILS[given["by"]](engine)
            spoiled = True
        elif name != "spoil":
            told.append(_called(getattr(engine, name), arguments, given))
            told[-1]["untouched"] = spoiled or weights(engine) == before
    pipe.send({"told": told})
    dist.barrier()
    plugged.close()


def _quantized(engine: Any) -> None:
    frozen = next(one for one in engine.module.parameters() if not one.requires_grad)
    frozen.ds_tensor.ds_quant_scale = 1.0


def _tensor_parallel(engine: Any) -> None:
    engine._config.tensor_parallel_config.autotp_size = 2


def _random_ltd(engine: Any) -> None:
    engine._config.data_efficiency_config["data_routing"]["random_ltd"]["enabled"] = True


def _on_nvme(engine: Any) -> None:
    engine.optimizer.swap_optimizer = True


_SPOILS = {
    "nvme": _on_nvme,
    "quantized": _quantized,
    "random_ltd": _random_ltd,
    "tensor parallel": _tensor_parallel,
}
"""What DeepSpeed would set where the hardware or a model for it is there."""


def _called(call: Any, arguments: list[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            found = {"returned": call(*arguments, **given)}
        except Exception as error:  # noqa: BLE001 - it is what the test is to see
            found = {"raised": f"{type(error).__name__}: {error}"}
    return {**found, "notes": [str(note.message) for note in notes]}
