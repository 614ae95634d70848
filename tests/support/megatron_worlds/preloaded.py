"""Megatron-core on the CPU, imported once: before ranks are forked, or in a rank's script.

The import of this module has effects: it patches torch. HOLDFAST_PRELOAD can name it.
"""

from __future__ import annotations

import warnings

from megatron_worlds.cpu_shim import install, mend_router

install()
# Of what is not installed (Apex, Transformer Engine), and of gradients of views.
warnings.filterwarnings("ignore", category=UserWarning)

import torch  # noqa: E402 - the patches come first
import torch.distributed.checkpoint  # noqa: E402
from megatron.core.models.gpt import gpt_model  # noqa: E402, F401 - forked ranks find it imported
from megatron.core.optimizer import get_megatron_optimizer  # noqa: E402, F401

import holdfast.flash.checkpointer  # noqa: E402
import holdfast.integrations.megatron.shards  # noqa: E402, F401

mend_router()
torch.set_num_threads(1)
