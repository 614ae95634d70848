"""Codecs of deltas on the wire: raw, bf16, and int8 and int4 with a scale for each block.

Belongs here: values to bytes and back. Does not belong here: who sends which bytes (`reducers`).

For a block of 256 values x with s = max|x| / q, int8 (q = 127) and int4 (q = 7) send s as fp32 and
round(x / s); the error of a value is at most s / 2. int4 packs two values to a byte.

| codec | bytes for a value | of fp32 |
|---|---|---|
| bf16 | 2 | 0.5 |
| int8 | 1 + 4/256 | 0.254 |
| int4 | 1/2 + 4/256 | 0.129 |

A codec takes finite values only: what is not finite has been overwritten by zeros before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import torch

BLOCK: Final = 256
"""Values that share a scale. Fewer follow outliers better and cost more bytes."""


class Codec(Protocol):
    """Rows of values to rows of bytes, and back."""

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a uint8 row for each row; a row has a multiple of `BLOCK` values."""
        ...

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the values of rows that `encode` made."""
        ...


class Cast:
    """Values as they are, or as bf16: the upper half of fp32, its range and 8 bits of precision."""

    def __init__(self, dtype: torch.dtype, sent: torch.dtype) -> None:
        """Take the dtype of the values, and the one in which they travel."""
        self._dtype, self._sent = dtype, sent

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the values."""
        import torch

        return rows.to(self._sent).contiguous().view(torch.uint8)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the values."""
        return codes.view(self._sent).to(self._dtype)


class Quantised:
    """A scale for each block, then its values as integers of 8 or 4 bits."""

    def __init__(self, bits: int) -> None:
        """Take the bits of a value."""
        self._bits, self._most = bits, 2 ** (bits - 1) - 1

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scales of a row, then its values."""
        import torch

        blocks = rows.to(torch.float32).reshape(len(rows), -1, BLOCK)
        scales = blocks.abs().amax(dim=2, keepdim=True) / self._most
        divisors = torch.where(scales == 0, 1.0, scales)
        values = (blocks / divisors).round_().clamp_(-self._most, self._most).to(torch.int8)
        sent = values.flatten(1).view(torch.uint8)
        if self._bits == 4:
            pairs = (values + 8).view(torch.uint8).view(len(rows), -1, 2)
            sent = pairs[..., 0] | (pairs[..., 1] << 4)
        return torch.cat((scales.squeeze(2).contiguous().view(torch.uint8), sent), dim=1)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the values as fp32."""
        import torch

        scales = 4 * (codes.shape[1] // (BLOCK * self._bits // 8 + 4))
        sent = codes[:, scales:]
        values = sent.view(torch.int8)
        if self._bits == 4:
            pairs = torch.stack((sent & 15, sent >> 4), dim=2)
            values = pairs.flatten(1).to(torch.int8) - 8
        factors = codes[:, :scales].contiguous().view(torch.float32).unsqueeze(2)
        blocks = values.reshape(len(values), -1, BLOCK).to(torch.float32)
        return (blocks * factors).flatten(1)


def codec_of(name: str, dtype: torch.dtype) -> Codec:
    """Return the codec "none", "bf16", "int8" or "int4"; raises ValueError for another name.

    dtype: of the values that "none" sends as they are.
    """
    import torch

    named: dict[str, Codec] = {
        "none": Cast(dtype, dtype),
        "bf16": Cast(torch.float32, torch.bfloat16),
        "int8": Quantised(8),
        "int4": Quantised(4),
    }
    if name not in named:
        raise ValueError(f"codec={name!r}: choose one of {', '.join(named)}")
    return named[name]
