"""A pipeline of DeepSpeed with a tied layer, which is trained, saved and loaded; hashes of files.

Its ranks are forked by `deepspeed_world`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from checkpoints.deepspeed_world import ROWS, config_of

MICRO = 2
"""Micro-batches of a step."""


def _engine(world: Mapping[str, Any]) -> Any:
    import deepspeed
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from torch import nn

    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(world.get("seed", 0))
    net = PipelineModule(
        [
            TiedLayerSpec("ends", nn.Linear, 5, 5, bias=world.get("untied", False)),
            torch.tanh,
            LayerSpec(nn.Linear, 5, 9),
            LayerSpec(nn.LayerNorm, 9),
            torch.tanh,
            LayerSpec(nn.Linear, 9, 5),
            TiedLayerSpec("ends", nn.Linear, 5, 5, bias=world.get("untied", False)),
        ],
        num_stages=world["pipe"],
        loss_fn=lambda out, wanted: (out - wanted).square().mean(),
        partition_method="uniform",
    )
    replicas = world["world"] // world["pipe"]
    config = config_of({"world": replicas, "accumulate": MICRO, "stage": 1})
    trained = [one for one in net.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return engine


def _batches(engine: Any, step: int) -> Iterator[Any]:
    import torch

    rows = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step))
    replica, count = engine.grid.get_data_parallel_rank(), engine.grid.data_parallel_size
    mine = rows[replica * ROWS // count : (replica + 1) * ROWS // count]
    yield from ((part, part.flip(1)) for part in mine.chunk(MICRO))


def run(world: Mapping[str, Any], pipe: Any) -> None:
    """Load what is there, save it again elsewhere if asked to, train, save, train on."""
    from holdfast.integrations.deepspeed import Checkpointer

    engine = _engine(world)
    flash = Checkpointer(world["root"], engine)
    start = flash.load()
    if "copy" in world:
        with Checkpointer(world["copy"], engine) as copy:
            copy.save(start)
    losses = [
        float(engine.train_batch(_batches(engine, step)))
        for step in range(start, start + world["steps"])
    ]
    if world.get("save"):
        flash.save(start + world["steps"])
        flash.wait()
    more = [
        float(engine.train_batch(_batches(engine, start + world["steps"] + step)))
        for step in range(world.get("more", 0))
    ]
    pipe.send({"start": start, "losses": losses, "more": more, "steps": engine.global_steps})
    flash.close()


def read(world: Mapping[str, Any], pipe: Any) -> None:
    """Hash every tensor of some steps, as torch's own `dcp.load` reads them."""
    import torch
    import torch.distributed.checkpoint as dcp

    answers = []
    for folder in world["folders"]:
        reader = dcp.FileSystemReader(folder)
        forms: dict[str, Any] = reader.read_metadata().state_dict_metadata
        state = {
            name: torch.empty(form.size, dtype=form.properties.dtype)
            for name, form in forms.items()
            if hasattr(form, "size") and not name.startswith("buffers.")
        }
        dcp.load(state, storage_reader=reader, no_dist=True)
        answers.append({name: _hash(value) for name, value in sorted(state.items())})
    pipe.send({"hashes": answers, "rank": os.environ["RANK"]})


def _hash(value: Any) -> str:
    body = value.contiguous().view(-1).numpy().tobytes()
    return hashlib.sha256(f"{tuple(value.shape)}".encode() + body).hexdigest()[:16]
