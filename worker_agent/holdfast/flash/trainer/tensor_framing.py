"""Framing that torch.save puts around a tensor, obtained without saving any values.

A DCP file is one such record after another. The framing depends on dtype and sizes only, so it is
written into an arena once per layout, and later saves replace the values in between.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.trainer.leaves import StateError

if TYPE_CHECKING:
    import torch

ALIGN: Final = 64
"""torch aligns values inside a record to this many bytes; records begin at multiples of it too."""
_VALUES_NAME: Final = b"/data/0"


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes before and after a tensor's values."""

    before: bytes
    after: bytes
    size: int
    """Size of the values, bytes."""

    @property
    def length(self) -> int:
        """Length of the whole record, bytes."""
        return len(self.before) + self.size + len(self.after)


class FrameError(StateError):
    """This torch writes records in an unknown form."""


class _Recorder(io.RawIOBase):
    """Keeps the output of torch.save except the values, which it never touches."""

    def __init__(self, size: int) -> None:
        self.parts: list[bytes] = [b""]
        self.values = 0
        self._size = size
        self._writes_to_values = -1

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any) -> int:
        view = memoryview(chunk)
        if self._writes_to_values == 0:
            if view.nbytes != self._size:
                raise FrameError(f"torch.save wrote {view.nbytes} bytes where {self._size} are due")
            self.parts.append(b"")
            self.values += 1
        else:
            body = view.tobytes()
            self.parts[-1] += body
            if self._size and body.endswith(_VALUES_NAME) and not self.values:
                self._writes_to_values = 2  # padding comes first
        self._writes_to_values -= 1
        return view.nbytes


class Frames:
    """Frames by dtype and sizes, each made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, tuple[int, ...]], Frame] = {}

    def frame(self, dtype: torch.dtype, sizes: tuple[int, ...]) -> Frame:
        """Return the frame of a contiguous tensor; raises `FrameError`."""
        known = self._known.get((dtype, sizes))
        if known is None:
            known = self._known[dtype, sizes] = _frame(dtype, sizes)
        return known


def _frame(dtype: torch.dtype, sizes: tuple[int, ...]) -> Frame:
    import torch

    # Its memory is never touched, so it costs no page, however large it is.
    empty = torch.empty(sizes, dtype=dtype, device="cpu")
    recorder = _Recorder(empty.nbytes)
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)  # values change later; torch ignores the CRC
    try:
        torch.save(empty, recorder)  # type: ignore[arg-type] # typed as IO[bytes]
    finally:
        torch.serialization.set_crc32_options(before)
    expected = 1 if empty.nbytes else 0
    if recorder.values != expected or (expected and len(recorder.parts[0]) % ALIGN):
        raise FrameError(f"torch {torch.__version__} frames {dtype} {sizes} in an unknown way")
    return Frame(recorder.parts[0], recorder.parts[1] if expected else b"", empty.nbytes)
