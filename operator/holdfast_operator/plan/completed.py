"""Workers whose training has ended well, in the job's status: a new operator must know them. Pure.

Their pods may be gone by then, with their nodes, and nothing else tells a finished worker from one
that was never made. Its training would be run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from holdfast_operator.plan.history import History, SlotHistory
from holdfast_operator.plan.inputs import Look, PlannedJob
from holdfast_operator.plan.pods import WORKER, PodSlot, Role, wanted_slots

FIELD: Final = "completedIndexes"
"""Field of the status."""


def written(look: Look) -> str:
    """Return the finished workers, as `1,3-5`; empty: none is."""
    if look.job.spec.suspend or not any(entry.done for entry in look.history.values()):
        return ""
    return _text(
        slot.index
        for slot in wanted_slots(look.job.spec)
        if slot.role is Role.WORKER and look.entry(slot).done
    )


def remembered(job: PlannedJob) -> History:
    """Return the job's history with the finished workers of which only its status knows."""
    text = job.status.get(FIELD, "")
    if not text or job.spec.suspend:
        return job.history
    slots = (PodSlot(WORKER, index) for index in _indexes(text))
    missing = [slot for slot in slots if slot not in job.history]
    return {**dict.fromkeys(missing, SlotHistory(succeeded=True)), **job.history}


def _text(indexes: Iterable[int]) -> str:
    rows: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if rows and rows[-1][1] == index - 1:
            rows[-1] = (rows[-1][0], index)
        else:
            rows.append((index, index))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in rows)


def _indexes(text: str) -> Iterator[int]:
    for row in text.split(","):
        first, _, last = row.partition("-")
        yield from range(int(first), int(last or first) + 1)
