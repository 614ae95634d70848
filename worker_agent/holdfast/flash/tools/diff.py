"""`python -m holdfast.flash.tools.diff A B`: differences of two committed steps, bit for bit.

World sizes and layouts do not count, only names, dtypes, shapes and values. `holdfast checkpoint
diff` calls it in a process of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import ManifestError
from holdfast.flash.storage.reader import verify
from holdfast.flash.tools.formats import holdfast_step
from holdfast.flash.tools.formats.foreign import ForeignError
from holdfast.flash.tools.printing import end, put, refuse, shape_text
from holdfast.flash.trainer.leaves import StateError

if TYPE_CHECKING:
    import torch

DIFFERENT: Final = 9
_LONGEST: Final = 60
"""Length at which a printed value is cut, characters."""


class Contents:
    """Tensors and values of one committed step by name; every hash was compared."""

    def __init__(self, path: str) -> None:
        """Read and verify a step; raises `ManifestError`, `StateError`."""
        verify(Disk(), path)
        self.path, found = path, holdfast_step.read(path)
        self._tensors = {one.name: one for one in found.tensors}
        self.values = {".".join(map(str, keys)): value for keys, value in found.values.items()}
        self.forms = {name: (one.dtype, one.shape) for name, one in self._tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """Return a whole tensor, on the CPU; raises `ForeignError` if a part is missing."""
        return self._tensors[name].load()


def differences(one: Contents, other: Contents) -> Iterator[str]:
    """Compare two committed steps, of worlds of any size, bit for bit.

    Yields a line for each name that only one step has, or that stands for something else in the
    other: a tensor's dtype or shape, its number of different elements and the largest difference,
    or a value. Raises `ForeignError` if a part of a tensor is missing, OSError.
    """
    ours, theirs = one.forms, other.forms
    names = (ours.keys() | one.values.keys(), theirs.keys() | other.values.keys())
    for name in sorted(names[0] ^ names[1]):
        yield f"{name}: only in {(one if name in names[0] else other).path}"
    for name in sorted(names[0] & names[1]):
        if (name in ours) != (name in theirs):
            yield f"{name}: a tensor in {(one if name in ours else other).path} only"
        elif name not in ours:
            values = one.values[name], other.values[name]
            if not is_same(*values):
                yield f"{name}: {', '.join(map(_short, values))}"
        elif ours[name] != theirs[name]:
            forms = (f"{dtype} {shape_text(shape)}" for dtype, shape in (ours[name], theirs[name]))
            yield f"{name}: {', '.join(forms)}"
        else:
            yield from _tensors(name, one.tensor(name), other.tensor(name))


def _tensors(name: str, one: torch.Tensor, other: torch.Tensor) -> Iterator[str]:
    import torch

    bits = [
        tensor.reshape(-1).view(torch.uint8).view(tensor.numel(), tensor.itemsize)
        for tensor in (one, other)
    ]
    unlike = (bits[0] != bits[1]).any(dim=1)
    count = int(unlike.sum())
    if count:
        wide = torch.complex128 if one.is_complex() else torch.float64
        gaps = [tensor.reshape(-1)[unlike].to(wide) for tensor in (one, other)]
        most = float((gaps[0] - gaps[1]).abs().max())  # NaN, if one of them is NaN
        yield f"{name}: {count} of {unlike.numel()} elements differ, the most by {most:.3g}"


def is_same(one: Any, other: Any) -> bool:
    """Return True if two plain values are equal, their tensors bit for bit."""
    import torch

    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        form = (one.dtype, one.shape) == (other.dtype, other.shape)
        return form and not list(_tensors("", one.contiguous(), other.contiguous()))
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code: 0 equal, 9 different, 2 not readable."""
    parser = argparse.ArgumentParser(prog="holdfast checkpoint diff", description=__doc__)
    parser.add_argument("one")
    parser.add_argument("other")
    options = parser.parse_args(arguments)
    try:
        one, other = Contents(options.one), Contents(options.other)
        lines = [f"{line}\n" for line in differences(one, other)]
    except (ForeignError, ManifestError, StateError, OSError) as error:
        return refuse(error)
    count = len(one.forms) + len(one.values)
    same = f"all {count} tensors and values are the same, bit for bit\n"
    return put(lines or [same], DIFFERENT if lines else 0)


if __name__ == "__main__":
    end(main)
