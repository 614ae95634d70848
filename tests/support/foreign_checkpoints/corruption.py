"""Damages files of checkpoints at random, and tells what a reader makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.flash.storage.manifest import ManifestError
from holdfast.flash.tools.formats.conversion import open_checkpoint
from holdfast.flash.tools.formats.foreign import ForeignError
from holdfast.flash.tools.formats.pickles import Pickles
from holdfast.flash.trainer.leaves import StateError


def damage(sources: Sequence[Path], times: int, seed: int) -> int:
    """Damage one file at a time, and read; return how often the reading was refused.

    Fails unless a refusal names the file, and the tensor if that is known, and a reading that is
    not refused is the whole state. A reader may pass over bytes that carry nothing, such as
    padding.
    """
    chosen, refused = random.Random(seed), 0
    with Pickles() as pickles:
        origins = {source: _read(source, pickles)[2] for source in sources}
        for number in range(times):
            source = sources[number % len(sources)]
            files = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
            file = chosen.choice(sorted(files))
            content = file.read_bytes()
            file.write_bytes(_damaged(content, chosen))
            error, tensor, found = _read(source, pickles)
            file.write_bytes(content)
            refused += bool(error)
            named = bool(error) and (file.name in error or str(source) in error)
            named = named and tensor in error
            said = f"seed {seed}, number {number}: {file}: {error or 'another state was read'}"
            assert named or (not error and _alike(found, origins[source])), said
    return refused


def _damaged(content: bytes, chosen: random.Random) -> bytes:
    """Flip a bit, cut the end off, or overwrite up to 64 bytes."""
    body, at = bytearray(content), chosen.randrange(len(content))
    match chosen.randrange(3):
        case 0:
            body[at] ^= 1 << chosen.randrange(8)
        case 1:
            del body[at:]
        case _:
            end = min(len(body), at + chosen.randrange(1, 64))
            body[at:end] = chosen.randbytes(end - at)
    return bytes(body)


def _read(source: Path, pickles: Pickles) -> tuple[str, str, dict[str, Any]]:
    """Return what was read; or the refusal of it, and the tensor that was being read."""
    found: dict[str, Any] = {}
    tensor = ""
    try:
        opened = open_checkpoint(str(source), pickles)
        for one in opened.tensors:
            tensor = one.name
            found[tensor] = one.load()
    except (ForeignError, ManifestError, StateError) as error:
        return str(error), tensor, {}
    return "", "", found | {"values": sorted(map(repr, opened.values.items()))}


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    import torch

    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )
