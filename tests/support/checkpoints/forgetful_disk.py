"""A disk that forgets: after a crash only what was synchronised is sure to be there.

Every operation is counted; at a chosen one the power fails (`PowerCut`) or the operation does
(OSError). `after_power_cut` returns the disk that is found afterwards: of what was never
synchronised, a part drawn from the seed survives: later names may be there while earlier content is
not, and pages of a file may be missing.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.flash.storage.filesystem import Disk

PAGE = 4096


class PowerCut(BaseException):
    """The machine is gone; no handler of errors may go on."""


@dataclass(eq=False)
class File:
    """Content as programs see it, and as the platter has it."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass(eq=False)
class Folder:
    """Names as programs see them, and each state since the last synchronisation."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    states: list[dict[str, File | Folder]] = field(default_factory=lambda: [{}])
    """The durable state first."""

    def changed(self) -> None:
        """Note the names as they are now."""
        self.states.append(dict(self.names))


class ForgetfulDisk(Disk):
    """A disk in memory."""

    def __init__(self) -> None:
        """Begin empty, with a root that is durable."""
        self.root = Folder()
        self.operations = 0
        self.cut_at = 0
        """Number of the operation before which the power fails; 0: never."""
        self.fail_at: dict[int, int] = {}
        """Operation → errno."""
        self.forget_sync = False
        self.forget_sync_dir = False
        self.refuse: Callable[[str], int] = lambda name: 0
        """Operation's name → errno, 0 for none."""
        self._handles: dict[int, File] = {}

    def _count(self, name: str) -> None:
        self.operations += 1
        if self.operations == self.cut_at:
            raise PowerCut
        code = self.fail_at.get(self.operations, 0) or self.refuse(name)
        if code:
            raise OSError(code, os.strerror(code), name)

    def _find(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.strip("/").split("/")
        here = self.root
        for folder in folders:
            there = here.names.get(folder)
            if not isinstance(there, Folder):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            here = there
        return here, name

    def _folder(self, path: str) -> Folder:
        if not path.strip("/"):
            return self.root
        parent, name = self._find(path)
        found = parent.names.get(name)
        if not isinstance(found, Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _file(self, path: str) -> File:
        parent, name = self._find(path)
        found = parent.names.get(name)
        if not isinstance(found, File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _make(self, path: str, entry: File | Folder) -> None:
        parent, name = self._find(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        parent.names[name] = entry
        parent.changed()

    def make_dir(self, path: str) -> None:
        """Make a directory."""
        self._count("make_dir")
        self._make(path, Folder())

    def create(self, path: str, *, direct: bool) -> int:
        """Make a file; past the cache means nothing here: only `sync` counts."""
        self._count("create")
        file = File()
        self._make(path, file)
        handle = len(self._handles) + 1
        self._handles[handle] = file
        return handle

    def write(self, handle: int, data: bytes | memoryview) -> None:
        """Append; when the power fails meanwhile, a part has been written."""
        try:
            self._count("write")
        except (PowerCut, OSError):
            self._handles[handle].content += bytes(data)[: len(data) // 2]
            raise
        self._handles[handle].content += bytes(data)

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file."""
        self._count("truncate")
        del self._handles[handle].content[size:]

    def sync(self, handle: int) -> None:
        """Make content durable; after an error the dirty pages are gone for good."""
        try:
            self._count("sync")
        except OSError:
            self._handles[handle].content[:] = b"\0" * len(self._handles[handle].content)
            raise
        if not self.forget_sync:
            self._handles[handle].durable = bytes(self._handles[handle].content)

    def close(self, handle: int) -> None:
        """Close."""
        self._count("close")

    def sync_dir(self, path: str) -> None:
        """Make names durable."""
        self._count("sync_dir")
        if not self.forget_sync_dir:
            folder = self._folder(path)
            folder.states = [dict(folder.names)]

    def rename(self, old: str, new: str) -> None:
        """Rename within a directory."""
        self._count("rename")
        self._rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        parent, name = self._find(old)
        other, target = self._find(new)
        assert parent is other, "all renames stay in one directory"
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        there = parent.names.get(target)
        if isinstance(there, Folder) and there.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        parent.names[target] = parent.names.pop(name)
        parent.changed()

    def rename_new(self, old: str, new: str) -> None:
        """Rename to a name that must be free."""
        self._count("rename_new")
        parent, target = self._find(new)
        if target in parent.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self._rename(old, new)

    def exchange(self, one: str, other: str) -> None:
        """Swap two names."""
        self._count("exchange")
        parent, left = self._find(one)
        _, right = self._find(other)
        names = parent.names
        names[left], names[right] = names[right], names[left]
        parent.changed()

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._count("unlink")
        parent, name = self._find(path)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        del parent.names[name]
        parent.changed()

    def remove_tree(self, path: str) -> None:
        """Remove a directory, a file at a time: the power may fail in the middle."""
        folder = self._folder(path)
        for name in sorted(folder.names):
            self.unlink(f"{path}/{name}")
        self._count("rmdir")
        parent, name = self._find(path)
        del parent.names[name]
        parent.changed()

    def names(self, path: str) -> list[str]:
        """List a directory."""
        return list(self._folder(path).names)

    def size(self, path: str) -> int:
        """Return a file's length."""
        return len(self._file(path).content)

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        return bytes(self._file(path).content)

    def view(self, path: str) -> memoryview:
        """Return a file's content."""
        return memoryview(self.read(path))

    def open(self, path: str) -> int:
        """Open a file to read."""
        handle = len(self._handles) + 1
        self._handles[handle] = self._file(path)
        return handle

    def read_at(self, handle: int, at: int, buffer: memoryview) -> int:
        """Read from an offset on."""
        found = bytes(self._handles[handle].content[at : at + len(buffer)])
        buffer[: len(found)] = found
        return len(found)

    def flip(self, path: str, bit: int) -> None:
        """Change one bit of a file, as a bad disk does."""
        self._file(path).content[bit // 8] ^= 1 << bit % 8

    def after_power_cut(self, rng: random.Random) -> ForgetfulDisk:
        """Return the disk that the next boot finds."""
        found = ForgetfulDisk()
        found.root = _survivor(self.root, rng, {})
        return found


def _survivor(folder: Folder, rng: random.Random, known: dict[int, File | Folder]) -> Folder:
    """Pick one of the states since the last synchronisation; content is drawn on its own."""
    made = Folder()
    known[id(folder)] = made
    for name, entry in rng.choice(folder.states).items():
        if id(entry) not in known:
            known[id(entry)] = (
                _survivor(entry, rng, known) if isinstance(entry, Folder) else _torn(entry, rng)
            )
        made.names[name] = known[id(entry)]
    made.states = [dict(made.names)]
    return made


def _torn(file: File, rng: random.Random) -> File:
    """Return what is left of a file: all of it, what is durable, or some pages of the rest."""
    durable, content = file.durable, bytes(file.content)
    kind = rng.randrange(4)
    if durable == content or kind == 0:
        return File(bytearray(content), content)
    if kind == 1:
        return File(bytearray(durable), durable)
    left = bytearray(content[: rng.randrange(len(content) + 1)])
    for at in range(0, len(left), PAGE):
        if rng.random() < 0.5:
            page = durable[at : at + PAGE].ljust(PAGE, b"\0")
            left[at : at + PAGE] = page[: len(left[at : at + PAGE])]
    return File(left, bytes(left))
