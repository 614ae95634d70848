"""A GPT with mock data, trained by Megatron's own `pretrain()` on the CPU: a rank's script.

A short form of Megatron-LM's `pretrain_gpt.py`, which no wheel has: arguments, model, data set,
samplers and loop are Megatron's. `--drop-in` puts Holdfast's two functions in the place of
Megatron's; `--record` is a folder for what the test compares.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import megatron_worlds.preloaded_training  # noqa: F401 - the patches come first

# isort: split
import torch
from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.enums import ModelType
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_tp_rank
from megatron.training import get_args, pretrain, training
from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args
from megatron.training.utils import is_first_or_last_pipeline_stage

from megatron_worlds.pretrain_record import Record


def _data(samples: Any, vp_stage: int | None = None) -> Any:
    args = get_args()
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=None,
        blend_per_split=None,
        split=args.split,
        path_to_cache=args.data_cache_path,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
    )
    is_here = partial(_has_data, vp_stage)
    return BlendedMegatronDatasetBuilder(MockGPTDataset, samples, is_here, config).build()


_data.is_distributed = True  # type: ignore[attr-defined] # Megatron asks for it


def _has_data(vp_stage: int | None) -> bool:
    ends: bool = is_first_or_last_pipeline_stage(vp_stage)
    return ends and not mpu.get_tensor_model_parallel_rank()


def _batch(data: Any, vp_stage: int | None) -> dict[str, Any]:
    if not is_first_or_last_pipeline_stage(vp_stage):
        return {}
    args, rank = get_args(), mpu.get_tensor_model_parallel_rank()
    batch: dict[str, Any] = get_batch_on_this_tp_rank(
        {} if rank else next(data),
        broadcast_src_rank=mpu.get_tensor_model_parallel_src_rank(),
        broadcast_group=mpu.get_tensor_model_parallel_group(),
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        cp_size=1,
        tp_rank=rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=False,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=mpu.is_pipeline_first_stage(),
        is_pipeline_last_stage=mpu.is_pipeline_last_stage(),
    )
    return batch


def _loss(mask: Any, output: torch.Tensor) -> tuple[Any, ...]:
    mask = mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    count = mask.sum().clone().detach().to(torch.int)
    get_rerun_state_machine().validate_result(
        result=loss,
        rejection_func=torch.isnan,
        message="found NaN in local forward loss calculation",
        tolerance=0.0,
        fatal=True,
    )
    return loss, count, {"lm loss": torch.cat([loss.clone().detach().view(1), count.view(1)])}


def _forward(data: Any, model: Any) -> tuple[Any, Any]:
    batch = _batch(data, get_attr_wrapped_model(model, "vp_stage"))
    inputs = [batch.get(name) for name in ("tokens", "position_ids", "attention_mask")]
    output = model(*inputs, labels=batch.get("labels"), loss_mask=batch.get("loss_mask"))
    return output, partial(_loss, batch.get("loss_mask"))


def _more(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--drop-in", action="store_true")
    parser.add_argument("--record", type=Path, required=True)
    return parser


def main() -> None:
    """Train as the arguments say."""
    args = parse_and_validate_args(
        extra_args_provider=_more, args_defaults={"tokenizer_type": "NullTokenizer"}
    )
    if args.drop_in:
        from holdfast.integrations.megatron import load_checkpoint, save_checkpoint

        training.load_checkpoint, training.save_checkpoint = load_checkpoint, save_checkpoint
    record = Record(args.record)
    config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
    pretrain(config, _data, ModelType.encoder_or_decoder, _forward)
    record.end()


if __name__ == "__main__":
    main()
