"""Megatron's training on the CPU, imported once: in an agent (HOLDFAST_PRELOAD) or in a script.

The import of this module has effects: it patches torch and megatron.training. It wants the wheel of
megatron-core 0.19 or newer; an older one has no `megatron.training`.
"""

from __future__ import annotations

import logging

import megatron_worlds.preloaded  # noqa: F401 - patches torch
from megatron_worlds.cpu_shim import mend_norms, mend_training

mend_norms()
mend_training()
logging.disable(logging.WARNING)  # one for each draw: CPU generators in CUDA's place

from megatron.training import argument_utils, training  # noqa: E402, F401 - ranks find it imported
