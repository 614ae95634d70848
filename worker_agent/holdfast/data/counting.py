"""Count of the samples that a training has used: each id so many times, by epoch.

Belongs here: what records say, and the count over them. Does not belong here: their files
(`record`), and the command (`samples_report`).

A micro-batch counts once for each replica whose sum had it in a step that counts. A step counts
unless a later generation went on from before it: that one does it anew. A replica that was killed
behind a reduction has not said what it gave; the others say what the reduction had, or of a stream
which step of the replica is the newest that counts, and the replica's own record, which samples
these are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """How a rank came into the training."""

    replica: int
    """Of a plain world: the rank."""
    generation: str | None
    """Equal on all ranks that began together; None: it joined others."""
    start: int
    """Steps that its state had; what an earlier generation did behind them is done anew."""
    samples: int = 0
    """Of the data set; 0: unknown."""
    micro_batch: int = 0
    """Samples of a whole micro-batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """Samples of one epoch that a rank has read for a step."""

    step: int
    """Steps that are done once it is in the state."""
    number: int
    """Of the micro-batch in the step."""
    part: int
    """Number of what this rank reads of it."""
    epoch: int
    ids: tuple[int, ...]
    """Numbers of samples; for shards: of records in their shard."""
    shard: str = ""
    """Of shards: its name."""
    ends: bool = False
    """Of shards: the last of these records is the shard's last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """One step whose gradient a rank has applied."""

    step: int
    """Steps that are done."""
    gave: frozenset[int]
    """Micro-batches that this replica's sum had."""
    content: frozenset[int] | None
    """Micro-batches that the whole sum had; None: this rank was given the gradient."""


@dataclasses.dataclass(frozen=True, slots=True)
class LostReplica:
    """A replica that was lost, as another one knows it by its sums."""

    replica: int
    step: int
    """Newest step whose gradient has what it had read."""
    torn: int
    """Step that the others were in when they met without it. It may have applied that one alone."""


Line = Origin | Read | Applied | LostReplica
Place = tuple[int, int, int]
"""Step, number of a micro-batch, and the part of it that one rank of a replica reads."""


Id = tuple[str, int]
"""A shard ("": the data has none), and the number of a sample in it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpochCount:
    """What one epoch has used."""

    epoch: int
    used: int
    """Samples, each time that one was used."""
    once: int
    """Ids that were used once."""
    lost: int
    """Samples that its steps should have, and that no record has."""
    unused: tuple[Id, ...]
    """Ids that are known to be there and were not used: lost, or not reached yet, or left out by
    `last="drop"`."""
    doubled: Mapping[Id, int]
    """Ids that were used more than once, and how often."""
    unfinished: tuple[str, ...]
    """Shards whose last record was not used: what is behind the last one that was is unknown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleCount:
    """What a training has used."""

    steps: int
    """That count."""
    redone: int
    """That were applied, and done anew by a later generation."""
    missing: tuple[tuple[int, int], ...]
    """Step and micro-batch of sums whose samples no record has."""
    gaps: tuple[int, ...]
    """Steps before the newest that no record has."""
    epochs: tuple[EpochCount, ...]


@dataclasses.dataclass(slots=True)
class _File:
    origin: Origin
    reads: dict[Place, Read] = dataclasses.field(default_factory=dict)
    shards: list[Read] = dataclasses.field(default_factory=list)
    """Of streams: nobody else can have given them."""
    lost: list[LostReplica] = dataclasses.field(default_factory=list)
    steps: dict[int, Applied] = dataclasses.field(default_factory=dict)
    redone: set[int] = dataclasses.field(default_factory=set)


def count(records: Iterable[Iterable[Line]]) -> SampleCount:
    """Count what records say.

    Args:
        records: The lines of each file, in the order in which the files were begun.

    Raises:
        ValueError: a record does not begin with how its rank came into the training.
    """
    files = [_file(lines) for lines in records]
    _drop_redone(files)
    used, missing = _used(files)
    steps = {step for one in files for step in one.steps}
    first = min((one.origin.start for one in files), default=0)
    epochs: dict[int, list[Read]] = defaultdict(list)
    for read in used:
        epochs[read.epoch].append(read)
    return SampleCount(
        steps=len(steps),
        redone=len({step for one in files for step in one.redone}),
        missing=tuple(sorted(missing)),
        gaps=tuple(sorted({*range(first + 1, max(steps, default=0))} - steps)),
        epochs=tuple(_epoch(*one, files[0].origin) for one in sorted(epochs.items())),
    )


def _file(lines: Iterable[Line]) -> _File:
    several = iter(lines)
    origin = next(several, None)
    if not isinstance(origin, Origin):
        raise ValueError(  # noqa: TRY004 - it is a file that is wrong
            f"a record begins with {origin!r}, not with how its rank came in"
        )
    found = _File(origin)
    for one in several:
        if isinstance(one, Read) and one.shard:
            found.shards.append(one)
        elif isinstance(one, Read):
            found.reads[one.step, one.number, one.part] = one
        elif isinstance(one, Applied):
            found.steps[one.step] = one
        elif isinstance(one, LostReplica):
            found.lost.append(one)
    return found


def _drop_redone(files: Sequence[_File]) -> None:
    """Leave out what a later generation has done anew."""
    for at, later in enumerate(files):
        generation, start = later.origin.generation, later.origin.start
        if generation is None:
            continue
        for earlier in files[:at]:
            if earlier.origin.generation != generation:
                redone = {step for step in earlier.steps if step > start}
                earlier.redone |= redone
                for step in redone:
                    del earlier.steps[step]
                for place in [one for one in earlier.reads if one[0] > start]:
                    del earlier.reads[place]
                earlier.shards = [one for one in earlier.shards if one.step <= start]


def _used(files: Sequence[_File]) -> tuple[list[Read], set[tuple[int, int]]]:
    """Return what was used, and the micro-batches of which nothing is recorded."""
    gave: dict[Place, dict[int, Read]] = defaultdict(dict)
    left: dict[Place, Read] = {}
    for one in files:
        for place, read in one.reads.items():
            step = one.steps.get(place[0])
            if step is None or step.content is None:
                left[place] = read
            elif place[1] in step.gave:
                gave[place][one.origin.replica] = read
    wanted = {
        (applied.step, number)
        for one in files
        for applied in one.steps.values()
        for number in applied.content or ()
    }
    for place, read in left.items():
        if place not in gave and place[:2] in wanted:
            gave[place][-1] = read
    used = [read for several in gave.values() for read in several.values()]
    return used + _used_of_streams(files), wanted - {place[:2] for place in gave}


def _used_of_streams(files: Sequence[_File]) -> list[Read]:
    """Return what a rank has said to be applied, or others have, once its replica was lost."""
    told: dict[int, list[LostReplica]] = defaultdict(list)
    for each in {each for one in files for each in one.lost}:
        told[each.replica].append(each)

    def counts(replica: int, step: int, *, is_applied: bool) -> bool:
        first = -1  # it may have come back after a word, and be lost again
        for each in sorted(told[replica], key=lambda one: one.torn):
            if first < step <= each.step:
                return True
            if step == each.torn:
                return False
            first = each.torn
        return is_applied

    return [
        read
        for one in files
        for read in one.shards
        if counts(one.origin.replica, read.step, is_applied=read.step in one.steps)
    ]


def _epoch(epoch: int, reads: Sequence[Read], origin: Origin) -> EpochCount:
    used = Counter((read.shard, one) for read in reads for one in read.ids)
    sizes = dict.fromkeys((read.shard for read in reads), 0)
    for shard, one in used:
        sizes[shard] = max(sizes[shard], one + 1)
    ended = {read.shard for read in reads if read.ends}
    if "" in sizes:
        sizes[""] = max(sizes[""], origin.samples)
    unused = tuple(
        (shard, one)
        for shard, size in sorted(sizes.items())
        for one in range(size)
        if (shard, one) not in used
    )
    # A step's samples are known by their count alone; those of a shard that has ended by its size.
    whole = {(read.step, read.number) for read in reads if not read.shard}
    due = min(len(whole) * origin.micro_batch, origin.samples) if origin.samples else 0
    return EpochCount(
        epoch=epoch,
        used=used.total(),
        once=sum(times == 1 for times in used.values()),
        lost=max(0, due - len(used)) if "" in sizes else len(unused),
        unused=unused,
        doubled={one: times for one, times in sorted(used.items()) if times > 1},
        unfinished=tuple(sorted(sizes.keys() - ended - {""})),
    )
