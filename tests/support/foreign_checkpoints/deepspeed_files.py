"""Checkpoints of DeepSpeed's engine, and what its own loader makes of ours. See `worlds`."""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    """Import what every rank needs."""
    import deepspeed
    import deepspeed.runtime.zero.muon.muon_optimizer  # torch's compiler: two seconds, in each rank

    # Compiled at the first use for a minute, and of no use here: gloo reduces small tensors.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def model() -> Any:
    """Return a model with odd sizes and a buffer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    made: Any = nn.Module()
    made.a, made.n, made.b = nn.Linear(7, 11), nn.LayerNorm(11), nn.Linear(11, 3)
    made.register_buffer("count", torch.arange(3.0))
    made.frozen, made.tied = nn.Linear(11, 11, bias=False), made.n
    made.frozen.requires_grad_(requires_grad=False)
    made.forward = lambda rows: made.b(made.tied(made.frozen(made.a(rows))))
    return made


def _engine(stage: int, dtype: str, *, universal: bool = False) -> Any:
    import deepspeed
    import torch

    made = model()
    every = [one for one in made.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in every if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in every if one.dim() < 2], "weight_decay": 0.0},
    ]
    config = _config(
        dtype,
        zero_optimization={"stage": stage, "sub_group_size": 60},
        checkpoint={"load_universal": universal},
    )
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=made, optimizer=optimizer, config=config)
    return engine


def _config(dtype: str = "bf16", **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "bf16": {"enabled": dtype == "bf16"},
        **more,
    }


def save(stage: int, folder: str, dtype: str = "bf16", truth: str = "") -> None:
    """Train three steps and save; also the masters as DeepSpeed itself gathers them."""
    import torch
    import torch.distributed as dist
    from deepspeed.utils import safe_get_full_fp32_param

    engine = _engine(stage, dtype)
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        rows = torch.randn(2, 7, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
        loss = engine(rows).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder, tag="global_step3", client_state={"epoch": 2})
    named = [pair for pair in engine.module.named_parameters() if pair[1].requires_grad]
    masters = {name: safe_get_full_fp32_param(one) for name, one in named}
    if truth and dist.get_rank() == 0:
        torch.save(masters, truth)


def load_and_save(stage: int, folder: str, tag: str, again: str) -> None:
    """Load a universal checkpoint by DeepSpeed's own code, and save it natively."""
    engine = _engine(stage, "bf16", universal=True)
    path, _ = engine.load_checkpoint(folder, tag=tag)
    assert path is not None, f"DeepSpeed found no checkpoint in {folder}/{tag}"
    engine.save_checkpoint(again, tag="again")


class _Parallel:
    """The tensor-parallel groups that a script of Megatron-DeepSpeed tells DeepSpeed of."""

    def __init__(self, size: int) -> None:
        import torch.distributed as dist

        world, rank = dist.get_world_size(), dist.get_rank()
        self.size, self.rank = size, rank % size
        data = [[one for one in range(world) if one % size == at] for at in range(size)]
        tensor = [list(range(at, at + size)) for at in range(0, world, size)]
        self._data = [dist.new_group(ranks) for ranks in data][rank % size]
        self._tensor = [dist.new_group(ranks) for ranks in tensor][rank // size]
        self._data_size, self._data_rank = world // size, rank // size

    def __getattr__(self, name: str) -> Any:
        """Answer Megatron's names, such as get_tensor_model_parallel_rank."""
        tensor = self.size, self.rank, self._tensor
        kinds = {
            "get_data_parallel": (self._data_size, self._data_rank, self._data),
            "get_model_parallel": tensor,
            "get_tensor_model_parallel": tensor,
        }
        kind = name.rpartition("_")[0].removesuffix("_world")
        if kind not in kinds:
            raise AttributeError(name)
        size, rank, group = kinds[kind]
        answers = {"size": size, "rank": rank, "group": group}
        return lambda: answers[name.rpartition("_")[2]]


def save_slices(stage: int, folder: str) -> None:
    """Train a model whose parameters are cut over two tensor-parallel ranks, and save."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch import nn

    parallel = _Parallel(2)
    torch.manual_seed(parallel.rank)
    made: Any = nn.Module()
    made.columns, made.rows = nn.Linear(6, 5, bias=False), nn.Linear(4, 3, bias=False)
    made.words, made.gated = nn.Linear(6, 4, bias=False), nn.Linear(6, 8, bias=False)
    torch.manual_seed(7)
    made.norm = nn.LayerNorm(6)
    made.universal_checkpoint_info = {
        "universal_checkpoint_version": 0.4,
        "tp_replicated_parameter_patterns": [r"norm\..*"],
        "parameter_with_row_parallelism_patterns": [r"rows\.weight"],
        "vocabulary_parameter_patterns": [r"words\.weight"],
        "original_vocab_size": 7,
        "parameter_with_2_sub_params_cat_dim_0": [r"gated\.weight"],
    }
    made.forward = lambda rows: [
        part(given)
        for part, given in (
            (made.columns, rows),
            (made.rows, rows[:, :4]),
            (made.words, rows),
            (made.gated, rows),
            (made.norm, rows),
        )
    ]
    engine, *_ = deepspeed.initialize(
        model=made,
        optimizer=torch.optim.AdamW(made.parameters(), lr=1e-2),
        mpu=parallel,
        config=_config(zero_optimization={"stage": stage}, gradient_clipping=0.0),
    )
    for step in range(2):
        torch.manual_seed(step + 10 * (dist.get_rank() // 2))
        rows = torch.randn(2, 6, dtype=torch.bfloat16)
        engine.backward(sum(out.float().square().sum() for out in engine(rows)))
        engine.step()
    engine.save_checkpoint(folder, tag="global_step2")
