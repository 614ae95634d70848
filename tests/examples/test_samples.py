"""Numbered samples: which text a sample number stands for, and who works on it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from house.repository import ROOT

pytestmark = pytest.mark.train  # torch is imported, nothing is trained
LENGTH, CONTEXT = 4000, 16


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module english_text of the examples."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("english_text")


def _batches(text: Any, batch: int, seed: int = 0) -> Any:
    import torch

    return text.Batches((torch.arange(LENGTH) % 256).byte(), CONTEXT, batch, seed)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 16])
def test_ranks_divide_the_batch(text: Any, world_size: int) -> None:
    """Each sample goes to exactly one rank, shares differ by one at most, fingerprints add up."""
    whole = _batches(text, 10).share(990, 0, 1)
    shares = [_batches(text, 10).share(990, rank, world_size) for rank in range(world_size)]
    assert [number for share in shares for number in share.samples] == list(whole.samples)
    assert [start for share in shares for start in share.starts.tolist()] == whole.starts.tolist()
    sizes = [len(share.samples) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sum(share.fingerprint() for share in shares) == whole.fingerprint()
    assert all(
        tuple(share.windows.shape) == (n, CONTEXT + 1)
        for n, share in zip(sizes, shares, strict=True)
    )


def test_an_epoch_reads_each_window_once(text: Any) -> None:
    """The samples of an epoch start in distinct windows, all of them inside the text."""
    windows = (LENGTH - CONTEXT - 1) // CONTEXT
    for epoch in range(3):
        starts = _batches(text, windows).share(epoch * windows, 0, 1).starts.tolist()
        offset = min(starts) % CONTEXT
        assert sorted(starts) == [window * CONTEXT + offset for window in range(windows)]
        assert max(starts) + CONTEXT < LENGTH


def test_the_order_follows_from_the_seed_alone(text: Any) -> None:
    """Asked in any order, a sample is the same; another seed or epoch gives another order."""
    late = _batches(text, 4).share(4000, 0, 1).starts.tolist()
    straight = _batches(text, 4)
    for first in range(0, 4000, 4):
        straight.share(first, 0, 1)
    assert straight.share(4000, 0, 1).starts.tolist() == late
    assert (
        straight.share(0, 0, 1).starts.tolist() == _batches(text, 4).share(0, 0, 1).starts.tolist()
    )
    assert _batches(text, 4, seed=1).share(4000, 0, 1).starts.tolist() != late


def test_a_fingerprint_tells_other_samples(text: Any) -> None:
    """A sample taken twice, left out, or cut elsewhere changes the batch's fingerprint."""
    share = _batches(text, 8).share(0, 0, 1)
    moved = text.Share(share.samples, share.starts + 1, share.windows)
    shorter = text.Share(share.samples[1:], share.starts[1:], share.windows[1:])
    assert len({share.fingerprint(), moved.fingerprint(), shorter.fingerprint()}) == 3


def test_a_window_predicts_the_next_byte(text: Any) -> None:
    """A window is the text from its start on, one byte longer than the context."""
    share = _batches(text, 3).share(5, 0, 1)
    for start, window in zip(share.starts.tolist(), share.windows.tolist(), strict=True):
        assert window == [place % 256 for place in range(start, start + CONTEXT + 1)]


def test_the_unigram_entropy_is_right(text: Any) -> None:
    """Four bytes equally often are two bits; one byte only is nothing."""
    import math

    import torch

    assert text.unigram_entropy(torch.tensor([1, 2, 3, 4] * 5).byte()) == pytest.approx(
        2 * math.log(2)
    )
    assert text.unigram_entropy(torch.full((9,), 7).byte()) == 0


def test_validation_is_the_text_that_training_never_sees(text: Any) -> None:
    """The split keeps every byte, and even windows cover the validation part once."""
    import torch

    whole = (torch.arange(LENGTH) % 251).byte()
    training, validation = text.split(whole, CONTEXT)
    assert torch.equal(torch.cat([training, validation]), whole)
    assert len(validation) == LENGTH // 10
    starts = text.even_starts(validation, CONTEXT).tolist()
    assert starts == list(range(0, len(validation) - CONTEXT, CONTEXT))
