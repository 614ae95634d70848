"""The text, its split, and the order in which training sees it.

The order is a pure function of (seed, sample number). It knows nothing of ranks or restarts, so
a run that was interrupted, or went on with more or fewer processes, sees what an unbroken one
sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

VALIDATION_SHARE = 0.1
"""The last tenth of the text is never trained on."""


def read(file: Path | None) -> Tensor:
    """Return the bytes (uint8) of `file`, or without one the text that Python's help() shows.

    That is half a megabyte of English or more, by Python's version. Raises OSError.
    """
    data = (
        file.read_bytes() if file else "\n".join(topics[name] for name in sorted(topics)).encode()
    )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def split(text: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return the training part and the validation part, which follows it.

    Raises ValueError where either is too short for one window of `context` + 1 bytes.
    """
    cut = len(text) - int(len(text) * VALIDATION_SHARE)
    if min(cut - context, len(text) - cut) <= context:
        raise ValueError(
            f"{len(text)} bytes are too few: more than {10 * context} are needed, so that the "
            "tenth for validation holds a window"
        )
    return text[:cut], text[cut:]


def windows(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """Cut out (len(starts), context + 1) bytes as int64: what to read, one place on to predict."""
    return text[starts[:, None] + torch.arange(context + 1)].long()


def even_starts(text: Tensor, context: int) -> Tensor:
    """Return the starts of windows that cover the text once."""
    return torch.arange(0, len(text) - context, context)


def unigram_entropy(text: Tensor) -> float:
    """Return the nats per byte of a model that knows only how often each byte occurs in `text`."""
    share = torch.bincount(text.long()).double() / len(text)
    return float(torch.special.entr(share).sum())


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one step's batch."""

    samples: range
    """Numbers of the samples, counted since training began."""
    starts: Tensor
    """Where each of them starts in the training text."""
    windows: Tensor
    """The samples themselves: int64 (samples, context + 1); possibly no samples at all."""

    @property
    def bytes(self) -> int:
        """Bytes that the model predicts in this share."""
        return self.windows.shape[0] * (self.windows.shape[1] - 1)

    def mean(self, nats: Tensor) -> Tensor | None:
        """Return a sum over this share as a mean per byte; None for an empty share."""
        return nats / self.bytes if self.bytes else None

    def fingerprint(self) -> int:
        """Return a number for what was taken from where; the ranks' add up to the batch's."""
        mixed = (torch.tensor(self.samples, dtype=torch.int64) * 1_000_003 + self.starts) * 7919
        return int((mixed % 999_983).sum())


class Batches:
    """The training text as numbered samples: each window once an epoch, shuffled by the seed."""

    def __init__(self, text: Tensor, context: int, batch: int, seed: int) -> None:
        """Take the text, the bytes of a window, the samples of a batch and the seed."""
        self._text = text
        self._context = context
        self._batch = batch
        self._seed = seed
        self._windows = (len(text) - context - 1) // context  # one less: each epoch has an offset
        self._epoch = -1
        self._offset = 0
        self._shuffled = torch.empty(0)

    def share(self, first: int, rank: int, world_size: int) -> Share:
        """Return `rank`'s part of the batch that starts with sample number `first`.

        The ranks' parts hold each sample once and differ by one at most; in a world larger than
        the batch some are empty.
        """
        batch = range(first, first + self._batch)
        size = len(batch)
        samples = batch[size * rank // world_size : size * (rank + 1) // world_size]
        starts = torch.tensor([self._start(sample) for sample in samples], dtype=torch.int64)
        return Share(samples, starts, windows(self._text, starts, self._context))

    def _start(self, sample: int) -> int:
        """Return where a sample starts in the text."""
        epoch, place = divmod(sample, self._windows)
        if epoch != self._epoch:
            dice = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._shuffled = torch.randperm(self._windows, generator=dice)
            self._offset = int(torch.randint(self._context, (), generator=dice))
            self._epoch = epoch
        return int(self._shuffled[place]) * self._context + self._offset
