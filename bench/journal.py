"""Costs of the master's storage: `python -m bench.journal [--nodes N] [--directory DIR]`.

Measures, for a job of N nodes: a commit with and without a sync, a base (the state after a week),
reading it and a whole segment as a successor does, the recording of an input, and a replay.
Prints one JSON object; each figure has its unit in its name.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast_master.core import Core
from holdfast_master.inputs import Connected, Moment, OperatorConnected, OperatorMessage, Received
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal.compaction import Retention, compact
from holdfast_master.journal.reader import read_history
from holdfast_master.journal.writer import Journal
from holdfast_master.replay.files import FORMAT, read_recording, recording_paths
from holdfast_master.replay.recorder import InputRecorder, RecordedCore
from holdfast_master.replay.replayer import redecide
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import codec
from holdfast_wire.messages import (
    BudgetCharge,
    BudgetKind,
    EventRecorded,
    Fence,
    GoodputClass,
    GoodputEntry,
    GoodputMarked,
    Heartbeat,
    Hello,
    Incident,
    JobEvent,
    JournalRecord,
    MasterSpec,
    NodeGoodput,
    NodeJoined,
    RankProgress,
    RecordingOpened,
    SegmentOpened,
    SessionRequest,
    WorldDecided,
    WorldMember,
)

JOB = "bench"
SEGMENT = 4 * 1024 * 1024
"""The default of `journal_segment_bytes`."""
COMMITS = 200
HEARTBEATS = 20_000
WEEK_MINUTES = 7 * 24 * 60
HEAD = SegmentOpened(format=4, epoch=1, incarnation="m1", job_uid=JOB)


def timed(what: Callable[[], object]) -> float:
    """Return how long a call takes, s."""
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def record(sequence: int, fact: object) -> JournalRecord:
    """Return a fact as a record."""
    return JournalRecord(sequence=sequence, unix_time=1.7e9 + sequence, fact=fact)  # type: ignore[arg-type]


def mark(nodes: int, minute: int) -> GoodputMarked:
    """Return the accounts of all nodes after so many minutes."""
    kinds = (GoodputClass.PRODUCTIVE, GoodputClass.RESTART, GoodputClass.WAITING)
    return GoodputMarked(
        nodes=tuple(
            NodeGoodput(
                node_rank=rank,
                classes=tuple(
                    GoodputEntry(kind=kind, node_seconds=60.0 * minute + rank) for kind in kinds
                ),
            )
            for rank in range(nodes)
        )
    )


def week(nodes: int) -> list[JournalRecord]:
    """Return facts that come to the state of a job after a week; accounts once, not each minute."""
    event = EventRecorded(event=JobEvent(reason="WorkerFailed", text="t" * 120, incident_id="i"))
    members = tuple(WorldMember(node_rank=r, agent_id="a" * 32) for r in range(nodes))
    facts: list[object] = [HEAD]
    facts += [NodeJoined(node_rank=r, agent_id="a" * 32, host=f"h{r}") for r in range(nodes)]
    facts += [
        dataclasses.replace(event, event=dataclasses.replace(event.event, sequence=at))
        for at in range(1, 10_001)
        if event.event is not None
    ]
    facts += [
        Incident(id=f"i{at}", text="t" * 120, evidence=("e" * 120,) * 5) for at in range(1_000)
    ]
    facts += [BudgetCharge(kind=BudgetKind.FAILURES, incident_id=f"i{at}") for at in range(1_000)]
    facts.append(WorldDecided(round=1, members=members, store_host="h", store_port=1))
    facts.append(mark(nodes, WEEK_MINUTES))
    return [record(at, fact) for at, fact in enumerate(facts, start=1)]


def fold(records: list[JournalRecord]) -> JobState:
    """Return the state that records come to."""
    state = JobState(event_limit=10_000, incident_limit=1_000)
    for item in records:
        apply(state, item)
    return state


def measure_commits(directory: Path) -> dict[str, float]:
    """Commit small batches, with and without a sync."""
    journal = Journal(directory, 1, "m1")
    data = codec.encode(record(1, NodeJoined(node_rank=1, agent_id="a" * 32)))
    synced = [timed(lambda: journal.commit([data] * 3, durable=True)) for _ in range(COMMITS)]
    plain = [timed(lambda: journal.commit([data] * 3, durable=False)) for _ in range(COMMITS)]
    journal.close()
    return {
        "commit_durable_median_us": statistics.median(synced) * 1e6,
        "commit_durable_p99_us": sorted(synced)[COMMITS * 99 // 100] * 1e6,
        "commit_median_us": statistics.median(plain) * 1e6,
    }


def measure_base(directory: Path, nodes: int) -> dict[str, float]:
    """Write the base of a week, then a whole segment after it, and read both."""
    records = week(nodes)
    state = fold(records)
    journal = Journal(directory, 1, "m1")
    journal.commit([codec.encode(item) for item in records], durable=True)
    journal.ask_rotation()
    journal.commit([], durable=False)
    keep = Retention(seconds=0.0, limit_bytes=0)
    spent = timed(lambda: compact(directory, HEAD, state, (), keep, 1.7e9))
    base = next(path for path in directory.iterdir() if path.name.startswith("base"))
    restore = timed(lambda: fold(list(read_history(directory, JOB).records)))
    minute = len(codec.encode(record(1, mark(nodes, WEEK_MINUTES))))
    sequence = state.sequence
    begun = journal.bytes_written
    while journal.bytes_written - begun < SEGMENT:
        sequence += 1
        journal.commit([codec.encode(record(sequence, mark(nodes, 1)))], durable=False)
    journal.close()
    whole = timed(lambda: fold(list(read_history(directory, JOB).records)))
    return {
        "base_write_check_s": spent,
        "base_bytes": base.stat().st_size,
        "base_read_s": restore,
        "base_and_segment_read_s": whole,
        "facts_bytes_per_day": minute * 1440.0,
    }


def _agents(core: RecordedCore, nodes: int, moment: Moment) -> None:
    core.handle(OperatorConnected(), moment)
    spec = MasterSpec(generation=1, replicas=nodes, min_replicas=1, max_replicas=nodes, node_unit=1)
    core.handle(OperatorMessage(spec), moment)
    for rank in range(nodes):
        hello = Hello(job_uid=JOB, node_rank=rank, agent_id=f"a{rank}", local_world_size=1)
        core.handle(Connected(rank + 1, hello, Fence()), moment)


def measure_recording(directory: Path, nodes: int) -> dict[str, float]:
    """Hand heartbeats of 8 ranks to a core that records, and decide them again."""
    identity = CoreIdentity(job_name=JOB, job_uid=JOB, epoch=1, incarnation="m1", version="0")
    opened = RecordingOpened(format=FORMAT, epoch=1, incarnation="m1", job_uid=JOB, job_name=JOB)
    recorder = InputRecorder(directory, dataclasses.replace(opened, version="0"), 1 << 30)
    plain = Core(identity, CoreSettings())
    recorded = RecordedCore(Core(identity, CoreSettings()), recorder)
    begun = Moment(1000.0, 1.7e9)
    rank = RankProgress(round=1, step=100, step_seconds=0.02, has_sdk=True)
    beat = Heartbeat(sequence=1, ranks=(rank,) * 8)
    raw = codec.encode(SessionRequest(fence=Fence(epoch=1, round=1), message=beat))
    costs = []
    for core in (RecordedCore(plain, _Nowhere()), recorded):  # type: ignore[arg-type]
        core.open(begun)
        _agents(core, nodes, begun)
        cpu = time.process_time()
        for at in range(HEARTBEATS):
            now = Moment(1000.0 + at / HEARTBEATS, 1.7e9)
            core.handle(Received(at % nodes + 1, Fence(), beat, raw), now)
        if core is recorded:
            recorder.close(60.0)
        costs.append(time.process_time() - cpu)
    path = recording_paths(directory)[0]
    recording = read_recording(path)
    if recording is None:
        raise SystemExit(f"{path} was not written")
    played = timed(lambda: list(redecide(recording.opened, recording.inputs(), [], {})))
    return {
        "recording_us_per_input": (costs[1] - costs[0]) / HEARTBEATS * 1e6,
        "handling_us_per_input": costs[0] / HEARTBEATS * 1e6,
        "recording_bytes_per_input": path.stat().st_size / HEARTBEATS,
        "replay_inputs_per_s": HEARTBEATS / played,
    }


class _Nowhere:
    """A recorder that writes nothing, to know what the recording adds."""

    def begin(self, *_: object) -> None:
        """Take nothing."""

    def note(self, _: object) -> None:
        """Take nothing."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to be measured")
    options = parser.parse_args()
    figures: dict[str, float] = {"nodes": options.nodes}
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        root = Path(name)
        figures |= measure_commits(root / "commits")
        figures |= measure_base(root / "base", options.nodes)
        (root / "inputs").mkdir()
        figures |= measure_recording(root / "inputs", options.nodes)
    sys.stdout.write(json.dumps({key: round(value, 3) for key, value in figures.items()}, indent=2))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
