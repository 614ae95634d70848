"""Megatron's `torch_dist` directories: torch's files, with common.pt and metadata.json.

placeholder
"""

from __future__ import annotations

from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError
from holdfast.flash.tools.formats.pickles import Pickles


def read(place: str, pickles: Pickles) -> Checkpoint:
    raise ForeignError(place)
