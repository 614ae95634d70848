"""Record of the samples that a training has used, written by each rank into a folder of the job.

Belongs here: files, written and read back. Does not belong here: what a line says, and the count
(`counting`).

A line is written with one call of the kernel, so a `kill -9` leaves it whole or not there at all.
A rank writes what it has read *before* the reduction that may contain it. So a replica that is
killed behind a reduction has its samples on record, and the others say what the reduction had.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.data.counting import Applied, Line, LostReplica, Origin, Read
from holdfast.environment import Environment

if TYPE_CHECKING:
    from holdfast.data.quota import QuotaSampler

log: Final = logging.getLogger("holdfast")
SUFFIX: Final = ".samples.jsonl"


_KINDS: Final[dict[str, type[Line]]] = {
    "origin": Origin,
    "read": Read,
    "applied": Applied,
    "lost": LostReplica,
}


class SampleRecord:
    """One rank's file; it begins with the first line."""

    def __init__(self, folder: str | Path) -> None:
        """Take the folder, which all ranks of the job share; it is made where it is not there."""
        self._folder, self._file = Path(folder), -1
        self._failed = False

    def begin(self, origin: Origin) -> None:
        """Open the file; later files of a folder have greater numbers."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{_next(self._folder):06}-{socket.gethostname()}-{os.getpid()}"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._file = os.open(f"{path}{SUFFIX}", flags, 0o644)
        except OSError as error:
            self._fail(error)
        self._write("origin", origin)

    @property
    def has_begun(self) -> bool:
        """The file is there, or cannot be."""
        return self._file >= 0 or self._failed

    def read(self, one: Read) -> None:
        """Write down what was read for a step, before it is reduced."""
        self._write("read", one)

    def applied(self, step: int, gave: Collection[int], content: Collection[int] | None) -> None:
        """Write down that a step is applied."""
        known = None if content is None else frozenset(content)
        self._write("applied", Applied(step, frozenset(gave), known))

    def lost(self, one: LostReplica) -> None:
        """Write down which step of a lost replica is the newest that counts."""
        self._write("lost", one)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _write(self, kind: str, line: Line) -> None:
        if self._failed:
            return
        fields = {one.name: getattr(line, one.name) for one in dataclasses.fields(line)}
        text = json.dumps({kind: fields}, default=sorted, separators=(",", ":"))
        try:
            os.write(self._file, f"{text}\n".encode())
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Train on without a record, and say so: a full disk must not end a training."""
        self._failed = True
        log.warning("samples are not recorded any more: %s: %s", self._folder, error)


class ShardRecords:
    """What a reader of shards has read since its newest step."""

    def __init__(self, folder: str | Path) -> None:
        """Take the folder."""
        self._record = SampleRecord(folder)
        self._read: dict[tuple[int, str], list[int]] = {}
        self._ended: set[tuple[int, str]] = set()

    @property
    def has_news(self) -> bool:
        """Something was read, or has ended, that no commit has."""
        return bool(self._read)

    def read(self, epoch: int, shard: str, position: int) -> None:
        """Note one record."""
        self._read.setdefault((epoch, shard), []).append(position)

    def end(self, epoch: int, shard: str) -> None:
        """Note that a shard has no more."""
        self._read.setdefault((epoch, shard), [])
        self._ended.add((epoch, shard))

    def commit(self, step: int, origin: Origin) -> None:
        """Write down that all of it is in the state after a step."""
        self.reducing(step, origin)
        self._record.applied(step, [], [])

    def lost(self, one: LostReplica, origin: Origin) -> None:
        """Write down which step of a lost replica is the newest that counts."""
        self._begin(origin)
        self._record.lost(one)

    def reducing(self, step: int, origin: Origin) -> None:
        """Write down what is in this replica's sum, before it is reduced for a step."""
        self._begin(origin)
        for part, ((epoch, shard), places) in enumerate(self._read.items()):
            ends = (epoch, shard) in self._ended
            self._record.read(Read(step, 0, part, epoch, tuple(places), shard=shard, ends=ends))
        self._read, self._ended = {}, set()

    def _begin(self, origin: Origin) -> None:
        if not self._record.has_begun:
            self._record.begin(origin)


class QuotaRecord:
    """What a rank of a plain world has used, by its `QuotaSampler`.

    A rank that is killed behind a reduction has committed nothing, and the others may go on with
    its gradient. So each rank has the samples of its next step on record, and each commit says
    that the step's sum had all of them.
    """

    def __init__(self, folder: str | Path, sampler: QuotaSampler) -> None:
        """Take the folder, which all ranks share, before the first step."""
        self._record, self._sampler = SampleRecord(folder), sampler
        self._read = sampler.start
        """Steps whose samples are on record."""
        size = sampler.samples.samples, sampler.samples.micro_batch
        self._record.begin(Origin(sampler.rank, generation(), sampler.start, *size))
        self._read_until(sampler.start + 1)

    def commit(self, step: int) -> None:
        """Write down that a step's samples are in the state; before its checkpoint.

        Args:
            step: Steps that are done.
        """
        self._read_until(step)
        every = range(self._sampler.samples.micro_batches)
        self._record.applied(step, self._sampler.numbers, every)
        self._read_until(step + 1)

    def _read_until(self, step: int) -> None:
        sampler, samples = self._sampler, self._sampler.samples
        for done in range(self._read, min(step, sampler.end)):
            epoch = samples.place(done).epoch
            for number in sampler.numbers:
                ids = tuple(samples.ids(done, number))
                self._record.read(Read(done + 1, number, 0, epoch, ids))
        self._read = max(self._read, step)


def _next(folder: Path) -> int:
    taken = (path.name.partition("-")[0] for path in folder.glob(f"*{SUFFIX}"))
    return 1 + max((int(one) for one in taken if one.isdecimal()), default=0)


def generation(epoch: int = 0) -> str:
    """Return what ranks that begin together have in common, and no others.

    Args:
        epoch: Of replicas that come and go, whose worlds restart each by themselves.
    """
    world = Environment.read()
    own = f"epoch {epoch}" if epoch else f"round {world.round}, restart {world.restart_count}"
    return f"{world.job_uid} {own}"


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder, in the order in which they were begun."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def lines_of(path: Path) -> Iterator[Line]:
    """Yield what a rank has written down; a torn last line is left out.

    Raises:
        ValueError: a line is none of a record; the file and its number are named.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            try:
                [(kind, fields)] = json.loads(text).items()
                yield _line(_KINDS[kind], fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: no line of a record: {error}") from error


def _line(kind: type[Line], fields: dict[str, Any]) -> Line:
    if kind is Read:
        return Read(**{**fields, "ids": tuple(fields["ids"])})
    if kind is Applied:
        content = fields["content"]
        known = None if content is None else frozenset(content)
        return Applied(fields["step"], frozenset(fields["gave"]), known)
    return kind(**fields)
