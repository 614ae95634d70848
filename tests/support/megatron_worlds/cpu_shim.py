"""Runs the real classes of megatron-core on the CPU with gloo: for tests, never for training.

Call `install` before the first import of `megatron.core`. Megatron names CUDA in literals, so each
patch below puts the CPU in its place, and says who needs it. What this does not give: fused
kernels, streams that overlap, CUDA graphs, NCCL, FP8.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable
from typing import Any, Final

_FACTORIES: Final = (
    *("tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn"),
    *("randint", "empty_like", "zeros_like", "ones_like", "full_like"),
)


def install() -> None:
    """Apply all patches to torch in this process."""
    # Tensor parallelism with sequence parallelism asserts it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # Megatron's jit_fuser is torch.compile, which would build C++ for each small function.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import torch
    import torch.distributed

    for patch in (
        _current_device,
        _factories,
        _moves,
        _type_names,
        _synchronize,
        _streams,
        _generators,
        _backend,
    ):
        patch(torch)


def _cpu(device: Any) -> Any:
    """Return the CPU for any spelling of a CUDA device."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    return "cpu" if is_number or str(device).startswith("cuda") else device


def _current_device(torch: Any) -> None:
    """About 150 places pass device=torch.cuda.current_device()."""
    torch.cuda.current_device = lambda: torch.device("cpu")


def _factories(torch: Any) -> None:
    """Schedules, gradient clipping, scalers and embeddings pass device="cuda" as a literal."""

    def on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is not None:
                kwargs["device"] = _cpu(kwargs["device"])
            return make(*args, **kwargs)

        return made

    for name in _FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))


def _moves(torch: Any) -> None:
    """The scripts and the loss reductions call .cuda() on tensors and modules."""
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self


def _type_names(torch: Any) -> None:
    """Both optimizers sort parameters by type(): "torch.cuda.FloatTensor" or an error."""
    original = torch.Tensor.type

    def named(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return original(self).replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.", 1)
        return original(self, dtype, *args, **kwargs)

    torch.Tensor.type = named


def _synchronize(torch: Any) -> None:
    """Communication between pipeline stages synchronizes the device unconditionally."""
    torch.cuda.synchronize = lambda *_, **__: None


class _Stream:
    """A stream on which everything has always finished."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any device and priority."""

    def wait_stream(self, _: Any) -> None:
        """Wait for nothing."""

    def wait_event(self, _: Any) -> None:
        """Wait for nothing."""


def _streams(torch: Any) -> None:
    """From 0.19 on the reduction of gradients asks for the current stream.

    Several instances of the distributed optimizer reduce on a stream of their own.
    """
    torch.cuda.Stream = _Stream
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_, **__: _Stream()
    torch.cuda.stream = lambda _: contextlib.nullcontext()


def _generators(torch: Any) -> None:
    """The tracker of tensor parallelism forks CUDA's generator: it gets the CPU's."""
    generator = torch.default_generator

    class Only(tuple[Any, ...]):
        """The generators by device, which is the CPU here."""

        __slots__ = ()

        def __getitem__(self, _: Any) -> Any:
            return generator

    torch.cuda.default_generators = Only((generator,))
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = lambda *_, **__: generator.get_state()
        module.set_rng_state = lambda state, *_, **__: generator.set_state(state)
        module.manual_seed = lambda seed: generator.manual_seed(seed)  # noqa: PLW0108 - torch
        # refuses one built-in function under two names
        module.initial_seed = lambda: generator.initial_seed()  # noqa: PLW0108
    torch.cuda._lazy_call = lambda call, **_: call()


def _backend(torch: Any) -> None:
    """Process groups ask for nccl and its options; gloo refuses both."""
    dist = torch.distributed

    def on_gloo(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            if "nccl" in str(kwargs.get("backend")):
                kwargs["backend"] = "gloo"
            if "pg_options" in kwargs:
                kwargs["pg_options"] = None
            return call(*args, **kwargs)

        return called

    dist.new_group = dist.distributed_c10d.new_group = on_gloo(dist.new_group)


def mend_router() -> None:
    """The router of 0.16.1 reads a name that only an import of Transformer Engine defines."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def mend_norms() -> None:
    """Sequence parallelism wants norms that mark their weights, which Apex's and TE's alone do.

    Megatron adds the gradients of marked weights over the tensor parallel ranks.
    """
    import torch
    from megatron.core.models import backends
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import transformer_block

    def marked(config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        norm = torch.nn.LayerNorm(hidden_size, eps=eps)
        for one in norm.parameters():
            vars(one)["sequence_parallel"] = config.sequence_parallel
        return norm

    backends.LNImpl = gpt_layer_specs.LNImpl = transformer_block.LayerNormImpl = marked


def mend_training() -> None:
    """Let `pretrain()` start: it asserts a GPU, and compiles what its wheel has compiled."""
    import torch
    from megatron.core.datasets import utils
    from megatron.training import training

    torch.cuda.device_count = lambda: 1  # without one, no parallel groups are made
    # Arguments depend on the generation: 9 is Hopper.
    hopper = types.SimpleNamespace(major=9, minor=0)
    vars(torch.cuda).update(set_device=lambda _: None, get_device_properties=lambda *_: hopper)
    utils.compile_helpers = lambda: None
    training.initialize_megatron = functools.partial(
        training.initialize_megatron, allow_no_cuda=True
    )
    build = training.build_train_valid_test_data_iterators

    def built(*args: Any, **kwargs: Any) -> Any:
        # A torch data loader draws its seed from the CPU's generator, after a load too. On a GPU
        # dropout draws from another one.
        before = torch.get_rng_state()
        found = build(*args, **kwargs)
        torch.set_rng_state(before)
        return found

    training.build_train_valid_test_data_iterators = built
