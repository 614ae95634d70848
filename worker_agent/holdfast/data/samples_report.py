"""`python -m holdfast.data.samples_report`: how often a training has used each sample.

Belongs here: the report, for people and as JSON; `holdfast samples` calls it in a process of its
own. Does not belong here: the count (`counting`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.data.counting import EpochCount, Id, Line, Origin, SampleCount, count
from holdfast.data.record import files_of, lines_of
from holdfast.flash.tools.printing import end, put, refuse, table_text

UNLIKE: Final = 10
"""Exit code where samples are lost or doubled."""
_SHOWN: Final = 10
"""Ids that are named of each kind."""


def main(words: Sequence[str] | None = None) -> int:
    """Print the report; return the exit code."""
    parser = argparse.ArgumentParser(prog="holdfast samples", allow_abbrev=False)
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(words)
    records = []
    for folder in args.folder:
        found = files_of(folder)
        if not found:
            return refuse(
                f"{folder}: no records of samples; a script writes them where it names a folder, "
                "as BatchOptions(record=...)"
            )
        records += [_of_job(str(folder), lines_of(path)) for path in found]
    try:
        counted = count(records)
    except (OSError, ValueError) as error:
        return refuse(error)
    lines = [_json(counted)] if args.json else _text(counted)
    return put((f"{line}\n" for line in lines), 0 if is_once(counted) else UNLIKE)


def _of_job(job: str, lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines whose generations are this job's: those of another job have the same names."""
    for one in lines:
        if isinstance(one, Origin) and one.generation is not None:
            yield dataclasses.replace(one, generation=f"{job}: {one.generation}")
        else:
            yield one


def is_once(counted: SampleCount) -> bool:
    """Return True if no sample was lost, and none was used twice in an epoch."""
    wrong = any(one.lost or one.doubled for one in counted.epochs)
    return not (wrong or counted.missing or counted.gaps)


def _text(counted: SampleCount) -> Iterator[str]:
    yield f"{counted.steps} steps; {counted.redone} more were done anew after a restart"
    rows: list[Sequence[str]] = [
        ("epoch", "used", "once", "lost", "doubled", "not used", "unfinished shards")
    ]
    for one in counted.epochs:
        figures = one.epoch, one.used, one.once, one.lost, len(one.doubled)
        rows.append(tuple(map(str, (*figures, len(one.unused), len(one.unfinished)))))
    yield table_text(rows)
    for one in counted.epochs:
        yield from _named(one)
    if counted.gaps:
        gaps = _ids([("", one) for one in counted.gaps])
        yield f"steps that no record has: {gaps}"
    for step, number in counted.missing[:_SHOWN]:
        yield f"step {step}: micro-batch {number} was in the sum, and no record says its samples"


def _named(one: EpochCount) -> Iterator[str]:
    if one.lost:
        yield f"epoch {one.epoch}: {one.lost} lost, among those not used: {_ids(one.unused)}"
    if one.doubled:
        yield f"epoch {one.epoch}: used more than once: {_ids(list(one.doubled))}"


def _ids(ids: Sequence[Id]) -> str:
    named = ", ".join(f"{shard}:{one}" if shard else str(one) for shard, one in ids[:_SHOWN])
    return f"{named} and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else named


def _json(counted: SampleCount) -> str:
    plain = {
        **dataclasses.asdict(counted),
        "epochs": [
            {
                **dataclasses.asdict(one),
                "doubled": [[*each, times] for each, times in one.doubled.items()],
            }
            for one in counted.epochs
        ],
    }
    return json.dumps(plain)


if __name__ == "__main__":
    end(main)
