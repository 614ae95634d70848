"""A tiny GPT of megatron-core's own classes in any layout, its training, and its global state.

The global state is put together from Megatron's own ranges and global offsets, not from Holdfast's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatron_worlds import fused_adam
from megatron_worlds.key_biases import GROUPS, HEADS

_BATCH, _LENGTH, _VOCABULARY = 4, 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A layout and a model."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int | None = None
    expert: int = 1
    """Ranks among which experts are dealt out."""
    precision: str = "fp32"
    distributed: bool = True
    """Megatron's distributed optimizer."""
    buckets: int | None = None
    """Elements of a bucket, with overlapped gradients; None: one bucket."""
    late_gather: bool = False
    """Parameters are gathered bucket by bucket during the next forward pass; needs buckets."""
    gated: bool = False
    tied: bool = False
    experts: int | None = None
    hidden: int = 32
    ffn: int = 2
    """Hidden size of an MLP as a multiple of the model's."""
    layers: int = 4
    vocabulary: int = _VOCABULARY
    optimizer: str = "adam"
    """"adam", "sgd", or "fused"."""
    instances: int = 1
    """Instances of the distributed optimizer: groups of ranks with the same shards."""
    replicas: int = 1
    """Replicas of local SGD, whose groups are passed to Megatron's wrapper by hand."""
    dropout: float = 0.0
    clip: float = 1.0
    """Greatest norm of the gradients; 0: any."""


@dataclass(slots=True)
class Training:
    """Model and optimizer of one rank."""

    setup: Setup
    config: Any
    chunks: list[Any]
    optimizer: Any
    scheduler: Any


def build(setup: Setup, seed: int) -> Training:
    """Initialize Megatron in this world and return a fresh training."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=setup.tensor,
        pipeline_model_parallel_size=setup.pipeline,
        virtual_pipeline_model_parallel_size=setup.virtual,
        expert_model_parallel_size=setup.expert,
        num_distributed_optimizer_instances=max(setup.instances, setup.replicas),
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    parallel = parallel_state.get_data_parallel_world_size()
    init_num_microbatches_calculator(parallel_state.get_data_parallel_rank(), None, 4, 1, parallel)
    return _training(setup, _config(setup))


def fresh(training: Training) -> Training:
    """Return another training of the same setup in this world."""
    return _training(training.setup, training.config)


def _training(setup: Setup, config: Any) -> Training:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    chunks = [_chunk(setup, config, number) for number in range(setup.virtual or 1)]
    optimizer = _optimizer(setup, chunks)
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=1e-2, min_lr=1e-3, lr_warmup_steps=8, lr_decay_steps=80,
        lr_decay_style="linear", start_wd=0.01, end_wd=0.01, wd_incr_steps=0,
        wd_incr_style="constant",
    )  # fmt: skip
    return Training(setup, config, chunks, optimizer, scheduler)


def _config(setup: Setup) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[setup.precision]
    more: dict[str, Any] = {}
    if setup.experts:
        more = {
            "num_moe_experts": setup.experts,
            "moe_router_topk": 2,
            "moe_aux_loss_coeff": 0.0,
            "moe_token_dispatcher_type": "allgather",
            "expert_model_parallel_size": setup.expert,
            "add_bias_linear": False,
        }
    return TransformerConfig(
        num_layers=setup.layers,
        hidden_size=setup.hidden,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        ffn_hidden_size=setup.ffn * setup.hidden,
        tensor_model_parallel_size=setup.tensor,
        pipeline_model_parallel_size=setup.pipeline,
        virtual_pipeline_model_parallel_size=setup.virtual,
        pipeline_dtype=dtype,
        bf16=setup.precision == "bf16",
        fp16=setup.precision == "fp16",
        params_dtype=dtype,
        gated_linear_unit=setup.gated,
        hidden_dropout=setup.dropout,
        attention_dropout=setup.dropout,
        attention_softmax_in_fp32=True,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        # Between two stages, batched messages of activations and gradients would be mixed up.
        overlap_p2p_comm=setup.virtual is not None,
        batch_p2p_comm=setup.virtual is None,
        **more,
    )


def _chunk(setup: Setup, config: Any, number: int) -> Any:
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    stage = {"ignore_virtual": False, "vp_stage": number if setup.virtual else None}
    model: Any = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=setup.experts),
        vocab_size=setup.vocabulary,
        max_sequence_length=_LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(**stage),
        post_process=parallel_state.is_pipeline_last_stage(**stage),
        share_embeddings_and_output_weights=setup.tied,
        vp_stage=stage["vp_stage"],
    )
    if setup.precision != "fp32":
        model = Float16Module(config, model)
    wrapped = DistributedDataParallelConfig(
        use_distributed_optimizer=setup.distributed,
        bucket_size=setup.buckets,
        overlap_grad_reduce=setup.buckets is not None,
        overlap_param_gather=setup.late_gather,
        num_distributed_optimizer_instances=setup.instances,
    )
    groups: dict[str, Any] = {}
    if setup.replicas > 1:
        from holdfast.local_sgd.megatron import replica_groups

        groups = {"pg_collection": replica_groups()}
    bucketing = {"disable_bucketing": number > 0}
    return DistributedDataParallel(config, wrapped, model, **bucketing, **groups)


def _optimizer(setup: Setup, chunks: list[Any]) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    if setup.optimizer == "fused":
        fused_adam.use()
    config = OptimizerConfig(
        optimizer="sgd" if setup.optimizer == "sgd" else "adam",
        lr=1e-2,
        min_lr=1e-3,
        weight_decay=0.01,
        bf16=setup.precision == "bf16",
        fp16=setup.precision == "fp16",
        use_distributed_optimizer=setup.distributed,
        overlap_param_gather=setup.late_gather,
        clip_grad=setup.clip,
    )
    return get_megatron_optimizer(config, chunks)


def step(training: Training, number: int) -> float:
    """Train one step on the batch of this number; return its mean loss, the same on all ranks."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    parallel = parallel_state.get_data_parallel_world_size()
    share = _BATCH // parallel
    found = backward(training, share_of(number, parallel_state.get_data_parallel_rank(), parallel))
    update(training)
    total = float(sum(one["loss"] for one in found)) if found else 0.0
    mean = torch.tensor([total / share], dtype=torch.float64)
    if found:
        dist.all_reduce(mean, group=parallel_state.get_data_parallel_group())
        mean /= parallel
    last = parallel_state.get_pipeline_model_parallel_last_rank()
    dist.broadcast(mean, last, group=parallel_state.get_pipeline_model_parallel_group())
    return float(mean)


def update(*trainings: Training) -> None:
    """Have optimizer and scheduler take a step."""
    for training in trainings:
        training.optimizer.step()
        training.scheduler.step(increment=_BATCH)


def spoil(training: Training) -> None:
    """Make the gradients infinite."""
    for buffer in (one for chunk in training.chunks for one in chunk.buffers):
        buffer.grad_data.fill_(math.inf)


def backward(training: Training, samples: Sequence[Any]) -> list[Any]:
    """Compute the mean gradients of some samples, reduced; return the losses of the last stage."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    batches = [list(samples) for _ in training.chunks]
    for chunk in training.chunks:
        chunk.zero_grad_buffer()
    training.optimizer.zero_grad()
    several = len(training.chunks) > 1
    found: list[Any] = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=[iter(one) for one in batches] if several else iter(batches[0]),
        model=training.chunks if several else training.chunks[0],
        num_microbatches=len(samples),
        seq_length=_LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )
    finalize_model_grads(training.chunks)  # those of tied embeddings and layer norms too
    return found


def share_of(number: int, place: int, places: int) -> list[Any]:
    """Return the samples of one of several equal shares of a batch."""
    wide = _BATCH // places
    return batch(number)[place * wide : (place + 1) * wide]


def batch(number: int) -> list[Any]:
    """Return the samples of the batch of this number."""
    import torch

    numbers = torch.Generator().manual_seed(1000 + number)
    tokens = torch.randint(0, _VOCABULARY - 8, (_BATCH, _LENGTH + 1), generator=numbers)
    return list(tokens.split(1))


def _forward(samples: Iterator[Any], model: Any) -> Any:
    import torch

    tokens = next(samples)
    mask = torch.ones((1, 1, _LENGTH, _LENGTH), dtype=torch.bool).triu(1)
    places = torch.arange(_LENGTH).unsqueeze(0)
    found = model(tokens[:, :-1], places, mask, labels=tokens[:, 1:])

    def mean(output: Any) -> Any:
        return output.float().mean(), {"loss": output.detach().double().mean()}

    return found, mean


def parameters(training: Training) -> list[Any]:
    """Return this rank's parameters."""
    return [one for chunk in training.chunks for one in chunk.parameters()]


def hash_of(tensors: Iterable[Any]) -> str:
    """Return a hash of this rank's tensors; no collective."""
    found = hashlib.sha256()
    for one in tensors:
        found.update(one.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def weights(training: Training) -> dict[str, str]:
    """Return the hash of every global weight, from all ranks."""
    return {key: one for key, one in digest(training).items() if key.startswith("weight.")}


def digest(training: Training) -> dict[str, str]:
    """Return the hash of every global tensor, from all ranks."""
    for chunk in training.chunks if training.setup.late_gather else ():
        chunk.start_param_sync(force_sync=True)
    return {key: hash_of([values]) for key, values in gathered(_own(training)).items()}


GlobalBox = tuple[str, tuple[int, ...], Any, Any]
"""Name, global shape, place as slices, values."""


def gathered(own: Iterable[GlobalBox], replica: int = 0) -> dict[str, Any]:
    """Return the global tensors that the ranks of a replica have in boxes; a collective of all."""
    import torch
    import torch.distributed as dist

    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (replica, list(own)))
    whole: dict[str, Any] = {}
    for key, shape, place, values in (box for its, rank in told if its == replica for box in rank):
        whole.setdefault(key, torch.full(shape, torch.nan))[place] = values.float()
    assert not any(one.isnan().any() for one in whole.values()), "a hole in a global tensor"
    return whole


def _own(training: Training) -> Iterator[GlobalBox]:
    """Yield all that this rank has first."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    for chunk in training.chunks:
        inner = chunk.module
        while hasattr(inner, "module"):
            inner = inner.module
        for entry in _nested(inner.sharded_state_dict()):
            for kind, values in _states(training.optimizer, entry.data):
                whole = values.view(entry.data.shape)
                if isinstance(entry, ShardedTensorFactory):
                    parts = list(_nested(replace(entry, data=whole).build()))
                else:
                    parts = [replace(entry, data=whole, dtype=whole.dtype)]
                for part in parts:
                    if not any(part.replica_id):
                        place = part.global_slice()
                        yield f"{kind}.{part.key}", part.global_shape, place, part.data.clone()


def _nested(entries: Any) -> Iterator[Any]:
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    for one in nested_values(entries):
        if isinstance(one, ShardedTensor | ShardedTensorFactory):
            yield one


def _states(optimizer: Any, parameter: Any) -> Iterator[tuple[str, Any]]:
    """Yield weight, master and moments of a whole local parameter; a collective of its ranks."""
    yield "weight", parameter.detach()
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if hasattr(one, "gbuf_ranges"):
            if any(parameter is each for buffer in one.buffers for each in buffer.params):
                yield from _gathered(one, parameter)
        else:
            main = getattr(parameter, "main_param", parameter)
            states = {"param": main.detach(), **one.optimizer.state.get(main, {})}
            yield from ((key, one) for key, one in states.items() if one is not None and one.dim())


def _gathered(optimizer: Any, parameter: Any) -> Iterator[tuple[str, Any]]:
    import torch
    import torch.distributed as dist

    states: Mapping[str, Any] = {}
    begin = end = 0
    if parameter in optimizer.model_param_gbuf_map:
        own = optimizer._get_model_param_range_map(parameter)["param"]
        begin, end = own.start, own.end
        states = optimizer._get_main_param_and_optimizer_states(parameter)
    for key in ("param", "exp_avg", "exp_avg_sq"):
        whole = torch.zeros(parameter.numel())
        if key in states:
            whole[begin:end] = states[key].detach().view(-1)
        dist.all_reduce(whole, group=optimizer.data_parallel_group)
        yield key, whole
