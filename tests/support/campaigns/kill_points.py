"""Lines of the flash checkpoint at which a process is killed: what each is called, and the trap.

A line is named by its file, its function and a part of its text, so that the table outlives edits
elsewhere; one that is not found, or is not the only one, is an error. Who is killed there and what
must hold afterwards is `named_kills` and `led_kills`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class Point:
    """A process dies just before it runs a line."""

    who: str
    """trainer, keeper; under a master node (the one with the grants) or master."""
    file: str
    """Module of holdfast.flash."""
    function: str
    """As its code's qualified name has it."""
    text: str
    """Part of the line."""
    nth: int = 1
    """How often the process comes there until it dies."""
    world: int = 1
    """In which world a trainer is to die; a keeper has one life for all."""
    files: bool = False
    """Arenas lie in files."""
    overlap: bool = False
    after: bool = False
    """A trainer dies first, while it writes to a slot."""
    last: bool = False
    """The last such line of the function; otherwise there must be one only."""

    @property
    def name(self) -> str:
        """For a report."""
        return f"{self.who} at {self.file}.{self.function}: {self.text!r} #{self.nth}"

    def find(self) -> tuple[str, int]:
        """Return the file's path and the number of the line."""
        spec = importlib.util.find_spec(f"holdfast.flash.{self.file}")
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        lines = source.splitlines()
        spans = [span for name, *span in _functions(ast.parse(source), "") if name == self.function]
        assert len(spans) == 1, f"{self.name}: {len(spans)} such functions"
        [(begin, end)] = spans
        found = [n for n in range(begin + 1, end + 1) if self.text in lines[n - 1]]
        assert len(found) == 1 or (found and self.last), f"{self.name}: lines {found}"
        return spec.origin, found[-1]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child.lineno, child.end_lineno or 0
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def die_at(point: Point, told: int) -> None:
    """Have this process kill itself at the point; `told`: a pipe that hears of it just before."""
    path, number = point.find()
    left = point.nth

    def at_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "line" and frame.f_lineno == number:
            left -= 1
            if not left:
                os.write(told, b"hit\n")
                os.kill(os.getpid(), signal.SIGKILL)
        return at_line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        here = code.co_qualname == point.function and code.co_filename == path
        return at_line if here else None

    threading.settrace(trace)
    sys.settrace(trace)


def _trainer(file: str, function: str, *texts: str, **more: Any) -> list[Point]:
    return [Point("trainer", file, function, text, **{"nth": 4, **more}) for text in texts]


def _keeper(file: str, function: str, *texts: str, **more: Any) -> list[Point]:
    return [Point("keeper", file, function, text, **more) for text in texts]


TRAINER = (
    *_trainer(
        "memory.arena", "ArenaSlot.begin_write",
        "words[SlotWord.STATE] = state",
        "words[SlotWord.SEQUENCE] =",
        "words[SlotWord.LINEAGE], words[SlotWord.STEP]",
        "words[SlotWord.MAGIC] = SLOT_MAGIC",
    ),
    *_trainer("trainer.copier", "Copier._frame", "slot.image[item.at : item.payload]", nth=2),
    *_trainer("trainer.copier", "Copier.begin", "slot.image[at : at + len(body)]"),
    *_trainer("trainer.copier", "Copier.copy", "copies.pieces.copy(threads)", nth=7),
    *_trainer("trainer.copier", "Copier.copy", "copies.pieces.copy(threads)", nth=8),
    *_trainer("trainer.copier", "Copier.copy", "for event in self._events", nth=8, overlap=True),
    *_trainer("trainer.save", "CopyThread._run", "self._work()", overlap=True),
    *_trainer(
        "memory.arena", "ArenaSlot.commit",
        "self.lengths[index] = length",
        "self.words[SlotWord.SEQUENCE] += 1",
        "self.words[SlotWord.CHECK] =",
        "self.words[SlotWord.STATE] = state",
    ),
    *_trainer("trainer.client", "Client.saved", "self._link.send(told)"),
    *_trainer("trainer.client", "Client.wait", "self.listen(left)", nth=2),
    *_trainer("trainer.save", "Preparer._has_come", "arena.fault_in", nth=1),
    *_trainer("trainer.restore", "restore", "shards.finish(partial=partial)", nth=1, world=2),
)  # fmt: skip
KEEPER = (
    *_keeper("server.arena_store", "ArenaStore.make", "held.arena.fault_in(", nth=2),
    *_keeper("server.arena_store", "_reading", "held.reading.append(slot.index)", nth=5),
    *_keeper("server.arena_store", "ArenaStore.release", "give_back(Move.RELEASE)", nth=2),
    *_keeper("memory.arena", "ArenaSlot.store_hashes", "self.hashes[index] = number", nth=30),
    *_keeper("memory.arena", "ArenaSlot.store_hashes", "self.words[SlotWord.HASHED]", nth=4),
    *_keeper("storage.commit", "open_attempt", "disk.make_dir(path)", "disk.sync_dir(root)", nth=4),
    *_keeper(
        "storage.commit", "write_whole",
        "handle = disk.create",
        "disk.write(handle",
        "disk.truncate(handle",
        "disk.sync(handle)",
        "disk.rename(private",
        "disk.sync_dir(folder)",
        nth=6,
    ),
    # Of each commit the third and the fourth file are .metadata and the manifest.
    *_keeper("storage.commit", "write_whole", "disk.rename(private", nth=7),
    *_keeper("storage.commit", "write_whole", "disk.rename(private", nth=8),
    *_keeper(
        "storage.commit", "commit",
        'disk.rename(f"{root}/{attempt.folder}", folder)',
        "metadata = metadata_pickle(",
        "_publish(disk, root, folder",
        nth=2,
    ),
    *_keeper("storage.commit", "_publish", "disk.rename_new(folder, final)", nth=2),
    *_keeper("storage.commit", "_publish", "disk.sync_dir(root)", nth=2, last=True),
    *_keeper("server.service", "ServerState.tell", "member.link.send(news)", nth=3),
    *_keeper("storage.owners", "_enter", "disk.close(disk.create", "disk.sync_dir(folder)"),
    *_keeper("storage.retention", "Retainer._delete", "discard(", nth=3),
    *_keeper(
        "storage.commit", "discard",
        "disk.rename(path, trash)", "disk.sync_dir(root)", "disk.remove_tree(trash)",
    ),
    *_keeper("server.arena_store", "ArenaStore.resume_from", "slot.give_back(", after=True),
    *_keeper("storage.commit", "sweep", "discard(disk, root", after=True),
    *_keeper("server.tiers", "StorageTier.newest", "found, damaged = newest", nth=2, files=True),
    *_keeper("server.service", "ServerState.answer", "member.link.send(message", nth=3),
    *_keeper(
        "storage.commit", "write_shard", "write_whole(disk, folder, shard.file", nth=6, files=True,
    ),
    *_keeper(
        "memory.arena", "ArenaSlot.give_back", "self.words[SlotWord.STATE] =", nth=3, files=True,
    ),
)  # fmt: skip


def _node(file: str, function: str, *texts: str, **more: Any) -> list[Point]:
    return [Point("node", file, function, text, **{"nth": 2, **more}) for text in texts]


def _master(*words: str, **more: Any) -> list[Point]:
    return [
        Point("master", "server.coordinated_restore", "Coordinator", word, **{"nth": 3, **more})
        for word in words
    ]


LED = (
    *_node(
        "storage.writer", "StepStorage._put",
        "self._disk.write(handle, content)", "self._disk.sync(handle)", "self._disk.rename(",
    ),
    *_node(
        "server.coordinated_commit", "CoordinatedCommit._tell", "self._coordinator.send(shards)",
    ),
    *_node("storage.writer", "StepStorage._commit_own", "commit(self._disk, self.root, attempt"),
    *_node(
        "storage.commit", "commit",
        'disk.rename(f"{root}/{attempt.folder}", folder)',
        "found = disk.size(",
        "metadata = metadata_pickle(",
        "_publish(disk, root, folder",
    ),
    *_node("storage.commit", "_tidy", "disk.unlink("),
    # Of each step this node writes its shard, .metadata and the manifest.
    *_node("storage.commit", "write_whole", "disk.rename(private", nth=5),
    *_node("storage.commit", "write_whole", "disk.rename(private", nth=6),
    *_node("storage.commit", "_publish", "disk.rename_new(folder, final)"),
    *_node("storage.commit", "_publish", "disk.sync_dir(root)", last=True),
    *_node(
        "storage.commit", "discard", "disk.rename(path, trash)", "disk.remove_tree(trash)", nth=1,
    ),
    *_node("server.coordinated_commit", "CoordinatedCommit._carried_out", "r.send(ended)"),
    *_node("server.coordinated_commit", "CoordinatedCommit.announce", "self._node.tell(version"),
    *_node("server.coordinated_restore", "CoordinatedRestore.choose", "send(question, lineage)"),
    *_node("server.coordinated_restore", "CoordinatedRestore._check", "manifest = tier.verify("),
    *_node("server.tiers", "MemoryTier.resume", "self._arenas.resume_from("),
    *_node(
        "server.coordinated_commit", "CoordinatedCommit._flush.<locals>.write",
        "part = self._shared.write_attempt(",
        nth=1,
    ),
    *_node(
        "server.coordinated_commit", "CoordinatedCommit._flush.<locals>.flushed",
        "self._flushing.remove(key)",
        nth=1,
    ),
    *_master("written", "committed", "held"),
    *_master("asks", "checked", nth=4),
)  # fmt: skip
