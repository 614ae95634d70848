"""Codecs: bounds of their errors, sizes, and what rows of any content become."""

from __future__ import annotations

import pytest
import torch

from holdfast.local_sgd.sync.codecs import BLOCK, codec_of

NAMES = ["none", "bf16", "int8", "int4"]
BYTES = {"none": 4.0, "bf16": 2.0, "int8": 1 + 4 / BLOCK, "int4": 0.5 + 4 / BLOCK}
LEVELS = {"int8": 127, "int4": 7}


def _rows(scale: float, count: int = 3, blocks: int = 4) -> torch.Tensor:
    draw = torch.Generator().manual_seed(11)
    return scale * torch.randn(count, blocks * BLOCK, generator=draw)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_costs_what_the_table_says(name: str) -> None:
    """Bytes of a row, scales included."""
    codes = codec_of(name, torch.float32).encode(_rows(1.0))
    assert codes.dtype == torch.uint8
    assert codes.shape == (3, int(4 * BLOCK * BYTES[name]))


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e18])
def test_no_value_is_off_by_more_than_half_a_scale(name: str, scale: float) -> None:
    """max|x| of a block, divided by the levels, is the scale; rounding loses half of it."""
    rows, codec = _rows(scale), codec_of(name, torch.float32)
    blocks = rows.view(3, -1, BLOCK)
    most = blocks.abs().amax(2, keepdim=True) / LEVELS[name]
    lost = (codec.decode(codec.encode(rows)).view_as(blocks) - blocks).abs()
    assert bool((lost <= 0.5001 * most).all())
    assert bool((lost > 0.4 * most).any())


def test_bf16_keeps_eight_bits() -> None:
    """The relative error is at most 2 to the power of -9, the rounding of bf16."""
    rows, codec = _rows(1.0), codec_of("bf16", torch.float32)
    assert bool(((codec.decode(codec.encode(rows)) - rows).abs() <= rows.abs() * 2**-8).all())


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name: str) -> None:
    """A replica that is left out sends zeros, and no scale of 0 divides anything."""
    codec = codec_of(name, torch.float32)
    assert not codec.decode(codec.encode(torch.zeros(2, BLOCK))).any()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_greatest_and_the_least_level_come_back(name: str) -> None:
    """Both ends of the range, and each level between, are exact."""
    top = LEVELS[name]
    levels = torch.arange(-top, top + 1, dtype=torch.float32)
    rows = torch.zeros(1, BLOCK)
    rows[0, : len(levels)] = levels[:BLOCK]
    codec = codec_of(name, torch.float32)
    assert torch.equal(codec.decode(codec.encode(rows)), rows)


def test_raw_values_keep_their_bits() -> None:
    """Codec "none" is exact, in the dtype of the values."""
    rows = _rows(1.0).double()
    codec = codec_of("none", torch.float64)
    assert torch.equal(codec.decode(codec.encode(rows)), rows)


def test_an_unknown_codec_is_refused_by_name() -> None:
    """The error names what there is."""
    with pytest.raises(ValueError, match="codec='int3': choose one of none, bf16, int8, int4"):
        codec_of("int3", torch.float32)
