"""Hashes on several threads: the same ones in the same order, and the first failure is told."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.flash.dcp import async_save
from holdfast.flash.memory import hashes
from holdfast.flash.memory.hashes import hash64, hash_items, on_threads

SEED = 20261127


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cores, whatever this machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


def test_threads_give_the_hashes_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of 0 to 2,000 bytes, cut into runs of a few hundred: equal to a plain loop."""
    monkeypatch.setattr(hashes, "_THREAD_BYTES", 300)
    chosen = random.Random(SEED)
    for _ in range(200):
        lengths = [chosen.choice((0, 1, 17, 400, 2000)) for _ in range(chosen.randrange(12))]
        image = memoryview(chosen.randbytes(sum(lengths)))
        spans, at = [], 0
        for length in lengths:
            spans.append((at, length))
            at += length
        expected = tuple(hash64(image[at : at + length]) for at, length in spans)
        assert hash_items(image, spans, training=False) == expected, f"seed {SEED}: {lengths}"
        assert hash_items(image, spans) == expected, f"seed {SEED}: {lengths}"


def test_runs_are_neighbours_and_about_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine items of 100 bytes on three threads are three runs of three, in order."""
    monkeypatch.setattr(hashes, "_THREAD_BYTES", 100)
    assert on_threads(range(9), lambda _: 100, list) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_little_work_needs_no_other_thread() -> None:
    """Below 16 MiB all items are one run."""
    assert on_threads(range(9), lambda _: 1000, list) == [list(range(9))]


def test_the_first_failing_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three runs fail: the error of the earlier one is raised."""
    monkeypatch.setattr(hashes, "_THREAD_BYTES", 100)

    def work(run: object) -> None:
        first = next(iter(run))  # type: ignore[call-overload]
        if first:
            raise ValueError(f"item {first}")

    with pytest.raises(ValueError, match="item 3"):
        on_threads(range(9), lambda _: 100, work)


def test_a_missing_package_is_said_when_the_checkpointer_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not at the end of a training all of whose saves have failed in the background."""
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ImportError, match=r"pip install 'holdfast\[train\]'"):
        holdfast.Checkpointer(tmp_path, model=torch.nn.Linear(1, 1))
    with pytest.raises(ImportError, match="xxhash"):
        async_save({"model": {"w": torch.ones(1)}}, checkpoint_id=tmp_path / "x")
