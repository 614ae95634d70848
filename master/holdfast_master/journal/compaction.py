"""Compaction of a journal: a base stands for the oldest facts, and the files before it go.

Order is everything: a base gets its name only when the disk holds all of it and it was read back
and found equal, and files go only when the disk holds that name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast_master.instructions import JOURNAL_FORMAT, Fact
from holdfast_master.job.state import snapshot
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal import filesystem, framing
from holdfast_master.journal.reader import needed, starts_of, superseded
from holdfast_master.journal.segments import (
    FileName,
    JournalError,
    SegmentKind,
    base_path,
    epochs,
    listing,
    read_head,
)
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, PastMaster, SegmentOpened


class CompactionError(JournalError):
    """A base that could not be written; the files that were there stay."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits on facts that are kept for people although a base stands for them already."""

    seconds: float
    """At least this long, counted from the base that would let them go, s."""
    limit_bytes: int
    """But never more of them than this, bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class CompactionResult:
    """A base, and the files that were removed because of the base."""

    path: Path
    size: int
    removed: tuple[Path, ...]


def compact(
    directory: Path,
    head: SegmentOpened,
    state: JobState,
    masters: Sequence[PastMaster],
    retention: Retention,
    unix_time: float,
) -> CompactionResult:
    """Write a base for `state`, then remove the files that `retention` does not keep.

    Raises:
        CompactionError: it could not be written, or a newer master exists; nothing was removed.
    """
    newest = max(epochs(directory), default=0)
    if newest > head.epoch:
        raise CompactionError(f"a master of epoch {newest} exists, this one has {head.epoch}")
    sweep(directory, head.epoch)
    try:
        path, size = _write_base(directory, head, state, masters, unix_time)
        removed = _remove_old(directory, head.epoch, retention, unix_time)
    except OSError as error:
        raise CompactionError(
            f"journal {directory} cannot be compacted: {error.strerror}; old files stay: make room"
        ) from error
    return CompactionResult(path, size, removed)


def sweep(directory: Path, epoch: int) -> None:
    """Remove the bases that masters of this epoch and older ones had half written at their end."""
    for path in directory.glob(".base-*.log"):
        writer = path.stem.rpartition("-")[2]
        if writer.isdigit() and int(writer) <= epoch:
            with contextlib.suppress(OSError):
                filesystem.remove(path)


def _write_base(
    directory: Path,
    head: SegmentOpened,
    state: JobState,
    masters: Sequence[PastMaster],
    unix_time: float,
) -> tuple[Path, int]:
    path = base_path(directory, head.epoch, state.sequence)
    temporary = path.with_name(f".{path.name}")
    opened = dataclasses.replace(head, format=JOURNAL_FORMAT, part=0, base=True)
    facts: tuple[Fact, ...] = (opened, *snapshot.parts_of(state, masters))
    record = JournalRecord(
        sequence=state.sequence, unix_time=unix_time, job_seconds=state.job_seconds
    )
    records = (dataclasses.replace(record, fact=fact) for fact in facts)
    data = b"".join(framing.frame(codec.encode(one)) for one in records)
    filesystem.write_synced(temporary, data)
    _check(temporary, state)
    filesystem.rename(temporary, path)
    filesystem.sync_directory(directory)
    return path, len(data)


def _check(path: Path, state: JobState) -> None:
    """Read a base back; raise CompactionError unless the base yields `state`."""
    found = JobState(event_limit=state.event_limit, incident_limit=state.incident_limit)
    scan = framing.scan(path.read_bytes())
    for record in scan.records:
        apply(found, codec.decode(JournalRecord, record))
    if scan.damage is not None or found != state:
        raise CompactionError(f"{path} was read back and is not what was written; old files stay")


def _remove_old(directory: Path, epoch: int, retention: Retention, now: float) -> tuple[Path, ...]:
    names = listing(directory)
    starts = starts_of(names)
    if any(name.epoch > epoch for name in names):
        return ()
    bases = [n for n in names if n.kind is SegmentKind.BASE and not superseded(n, starts)]
    sizes = {name: name.path.stat().st_size for name in names}
    cut = choose_cut(bases, starts, sizes, retention, now, _written)
    if cut is None:
        return ()
    keep = set(needed(starts, cut.number))
    old = [name.path for name in starts if name not in keep]
    old += [n.path for n in names if n.kind is SegmentKind.BASE and n.number < cut.number]
    for path in old:
        filesystem.remove(path)
    if old:
        filesystem.sync_directory(directory)
    return tuple(old)


def choose_cut(
    bases: Sequence[FileName],
    starts: dict[FileName, int | None],
    sizes: dict[FileName, int],
    retention: Retention,
    now: float,
    written: Callable[[FileName], float],
) -> FileName | None:
    """The base before which nothing is kept; None: everything is kept.

    The choice is the newest base that is older than the time for which facts are kept. Where that
    base would keep more bytes than allowed, the choice is a newer base.
    """
    ordered = sorted(bases, key=lambda name: (name.number, name.epoch))
    old = [at for at, name in enumerate(ordered) if written(name) <= now - retention.seconds]
    if not old and sum(sizes.values()) <= retention.limit_bytes:
        return None
    for base in ordered[old[-1] if old else 0 :]:
        kept = [*needed(starts, base.number), *(n for n in ordered if n.number >= base.number)]
        if sum(sizes[name] for name in kept) <= retention.limit_bytes:
            return base
    return ordered[-1] if ordered else None


def _written(name: FileName) -> float:
    head = read_head(name.path)
    return head.unix_time if head is not None else 0.0
