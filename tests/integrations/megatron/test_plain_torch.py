"""Files of a Megatron job are plain checkpoints: `dcp.load` reads them without Holdfast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from megatron_worlds.gpt import hash_of
from megatron_worlds.worlds import Worlds

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # it reads alone
]


def test_dcp_load_reads_every_global_tensor(worlds: Worlds, tmp_path: Path) -> None:
    """Masters and moments are whole tensors under torch's names, over Megatron's global keys."""
    setup = {"tensor": 2, "precision": "bf16"}
    first = worlds.run(world=4, root=tmp_path, until=2, save_at=[2], setup=setup)[0]
    metadata = dcp.FileSystemReader(tmp_path / "step_2").read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in metadata.items()
        if isinstance(one, TensorStorageMetadata)
    }
    loaded: dict[str, Any] = dict(tensors)
    dcp.load(loaded, checkpoint_id=tmp_path / "step_2", no_dist=True)
    assert len(tensors) == 3 * 17
    for name, tensor in tensors.items():
        assert tensor.dtype is torch.float32
        assert hash_of([tensor]) == first["saved"][_own(name)]
    assert "optimizer.param_groups.0.lr" in metadata


def _own(name: str) -> str:
    """Return the name of a stored tensor in the digest."""
    if name.startswith("model."):
        return "param." + name.removeprefix("model.")
    key, _, kind = name.removeprefix("optimizer.state.").rpartition(".")
    return f"{kind}.{key}"
