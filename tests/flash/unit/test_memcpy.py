"""The copy helper, compiled and not: the same bytes, whatever sizes and alignments."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.flash.trainer import memcpy
from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges, copy_helper

SIZES = (0, 1, 63, 64, 65, 4095, 4096, 16383, 16384, 16385, 65536, 100_003)


@pytest.fixture(params=["helper", "fallback"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with the compiled helper, and without."""
    if request.param == "fallback":
        monkeypatch.setattr(memcpy, "copy_helper", lambda: None)
    elif copy_helper() is None:
        pytest.skip("no copy helper in this build")


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_byte_arrives_and_no_other_changes(threads: int) -> None:
    """Random pieces at random alignments: exactly their bytes are copied."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    source = bytearray(rng.randbytes(4_000_000))
    target = bytearray(len(source))
    expected, pieces, at = bytearray(len(source)), [], 0
    while at < len(source) - 200_000:
        size, begin = rng.choice(SIZES), at + rng.randrange(64)
        origin = rng.randrange(len(source) - size)
        pieces.append(CopyRange(_address(target) + begin, _address(source) + origin, size))
        expected[begin : begin + size] = source[origin : origin + size]
        at = begin + size
    prepared = CopyRanges(pieces)
    assert prepared.size == sum(piece.size for piece in pieces)
    prepared.copy(threads)
    assert target == expected, f"seed {seed}"


@pytest.mark.usefixtures("_way")
def test_nothing_to_copy_is_no_error() -> None:
    """An empty state has no pieces."""
    CopyRanges([]).copy(2)


def test_many_threads_share_one_large_piece() -> None:
    """One tensor alone is split too."""
    source, target = bytearray(random.Random(1).randbytes(5_000_001)), bytearray(5_000_001)
    CopyRanges([CopyRange(_address(target), _address(source), len(source))]).copy(7)
    assert target == source


def test_the_helper_was_built_here() -> None:
    """`make setup` compiles it where there is a C compiler, which this project's machines have."""
    assert copy_helper() is not None


def test_without_the_library_the_fallback_is_used(tmp_path: Path) -> None:
    """A wheel built without a compiler works."""
    code = (
        "from pathlib import Path; from holdfast.flash.trainer import memcpy;"
        f"memcpy._LIBRARY = Path({str(tmp_path / 'missing.so')!r});"
        "print(memcpy.copy_helper() is not None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.parametrize("threads", [1, 3])
def test_both_ways_of_walking_copy_every_byte(threads: int) -> None:
    """A fresh process tries both ways on its first chunks, then keeps one: the bytes are right."""
    code = (
        "import ctypes, random;"
        "from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges, copy_helper;"
        "assert copy_helper() is not None; size = 90 * 2**20 + 12_345;"
        "source = random.Random(1).randbytes(size);"
        "target = bytearray(size + 64); view = (ctypes.c_char * len(target)).from_buffer(target);"
        "begin = ctypes.cast(ctypes.c_char_p(source), ctypes.c_void_p).value;"
        "pieces = CopyRanges([CopyRange(ctypes.addressof(view) + 13, begin, size)]);"
        f"pieces.copy({threads}); assert target[13:-51] == source; target[:] = bytes(size + 64);"
        f"pieces.copy({threads}); assert target[13:-51] == source;"
        "assert not any(target[:13]) and not any(target[-51:])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
