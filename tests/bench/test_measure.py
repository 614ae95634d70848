"""Figures that the recovery benchmark reads out of a log of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.recovery.measure import Recovery, completed_steps, next_step, recovery, went_on
from bench.recovery.steplog import Event, Follower, parse

RECORDED = Path(__file__).parent / "recorded" / "node-lost"
KILLED_AT = 2694.8883
BACK_AT = 2702.526


@pytest.fixture(name="recorded")
def _recorded() -> list[Event]:
    """torchrun: the node of rank 0 is killed, its new agent starts 7.6 s later."""
    return Follower(RECORDED).events()


def _step(t: float, *, step: int, rank: int = 0, round_id: int = 1, world: int = 2) -> Event:
    pid = 100 * round_id + rank
    return Event(t=t, event="step", rank=rank, pid=pid, round=round_id, world=world, step=step)


def _both(t: float, *, step: int, round_id: int) -> list[Event]:
    """Rank 1 completes the step a tenth of a second after rank 0."""
    return [
        _step(t, step=step, round_id=round_id),
        _step(t + 0.1, step=step, rank=1, round_id=round_id),
    ]


def _found(events: list[Event], moment: float, *, world: int | None = None) -> Recovery:
    found = recovery(events, moment, world=world)
    assert found is not None
    return found


def test_a_lost_node_is_measured_from_a_recorded_log(recorded: list[Event]) -> None:
    """The figures that the run itself wrote down come out again."""
    found = _found(recorded, KILLED_AT)
    assert found.total_s == pytest.approx(7.5919, abs=1e-3)
    assert found.restore_s == pytest.approx(0.0137, abs=1e-3)
    assert found.pause_s == pytest.approx(7.5996, abs=1e-3)
    assert (found.world, found.redone_steps, found.false_starts) == (1, 7, 0)


def test_a_returning_node_is_measured_from_a_recorded_log(recorded: list[Event]) -> None:
    """The survivor's pause is shorter than the newcomer's way to its first step."""
    found = _found(recorded, BACK_AT, world=2)
    assert found.total_s == pytest.approx(9.1943, abs=1e-3)
    assert found.pause_s == pytest.approx(6.5892, abs=1e-3)
    assert (found.world, found.redone_steps) == (2, 9)


def test_the_stages_add_up_to_the_total(recorded: list[Event]) -> None:
    """No second of a recovery is counted twice or lost."""
    found = _found(recorded, KILLED_AT)
    assert sum(found.stages.values()) == pytest.approx(found.total_s, abs=1e-6)
    assert found.stages["imported"] == pytest.approx(1.7814, abs=1e-3)


def test_a_step_counts_when_the_last_rank_has_done_it() -> None:
    """A step that one rank of two has done does not count."""
    events = [*_both(1.0, step=1, round_id=1), _step(2.0, step=2)]
    assert [(done.step, done.t) for done in completed_steps(events)] == [(1, 1.1)]


def test_steps_of_the_old_round_are_no_recovery() -> None:
    """A rank that goes on in the round of the fault has not recovered."""
    events = [*_both(1.0, step=1, round_id=1), *_both(3.0, step=2, round_id=1)]
    assert next_step(events, 2.0) is None
    assert went_on(events, 2.0, until=3.5) == 1


def test_a_round_that_stopped_has_noticed_the_fault() -> None:
    """A recovery that was too slow for the limit is not a fault that nobody saw."""
    events = [*_both(1.0, step=1, round_id=1), *_both(3.0, step=2, round_id=1)]
    assert went_on(events, 2.0, until=30.0) == 0


def test_a_round_that_only_one_rank_reached_is_no_recovery() -> None:
    """The next step is the first that all ranks of a new round have done."""
    half = [_step(3.0, step=1, round_id=2)]
    events = [*_both(1.0, step=1, round_id=1), *half, *_both(5.0, step=1, round_id=3)]
    assert _found(events, 2.0).total_s == pytest.approx(3.1)


def test_a_smaller_world_on_the_way_is_passed_over_when_asked() -> None:
    """After a crash the job is whole again only when both ranks train."""
    alone = _step(3.0, step=1, round_id=2, world=1)
    events = [*_both(1.0, step=1, round_id=1), alone, *_both(5.0, step=1, round_id=3)]
    assert _found(events, 2.0).world == 1
    assert _found(events, 2.0, world=2).total_s == pytest.approx(3.1)


def test_the_pause_is_the_longest_gap_and_not_the_total() -> None:
    """A world that trains on while a newcomer starts stands still only at the end."""
    steps = [event for at in range(1, 8) for event in _both(at, step=at, round_id=1)]
    events = [*steps, *_both(9.5, step=8, round_id=2)]
    found = _found(events, 2.0)
    assert found.total_s == pytest.approx(7.6)
    assert found.pause_s == pytest.approx(2.5)


def test_the_pause_of_an_earlier_fault_is_left_out_when_asked() -> None:
    """A newcomer that starts during another pause is not charged with it."""
    events = [
        *_both(1.0, step=1, round_id=1),
        _step(5.0, step=1, round_id=2, world=1),
        _step(5.2, step=2, round_id=2, world=1),
        *_both(6.0, step=3, round_id=3),
    ]
    charged = recovery(events, 2.0, world=2)
    spared = recovery(events, 2.0, world=2, quiet_from=5.0)
    assert charged is not None
    assert spared is not None
    assert charged.pause_s == pytest.approx(3.9)
    assert spared.pause_s == pytest.approx(0.9)


def test_a_barrier_save_is_told_apart_from_the_usual_ones() -> None:
    """Only the checkpoint that ends a process belongs to the pause."""
    usual = Event(t=2.5, event="saved", rank=0, pid=100, round=1, step=2, seconds=7.0)
    last = Event(t=2.6, event="saved", rank=0, pid=100, round=1, step=2, seconds=0.2, last=True)
    events = [*_both(1.0, step=1, round_id=1), usual, last, *_both(4.0, step=2, round_id=2)]
    found = _found(events, 2.0)
    assert found.save_s == 0.2
    assert found.net_pause_s == pytest.approx(found.pause_s - 0.2)


def test_processes_that_come_to_nothing_are_counted() -> None:
    """A peer whose restarts race each other shows how often they did."""
    lost = Event(t=2.5, event="started", rank=0, pid=7)
    mine = Event(t=3.0, event="started", rank=0, pid=200)
    events = [*_both(1.0, step=1, round_id=1), lost, mine, *_both(4.0, step=1, round_id=2)]
    assert _found(events, 2.0).false_starts == 1


def test_a_line_of_the_script_is_read() -> None:
    """Fields that nobody measures are dropped."""
    line = '{"t": 1.5, "event": "step", "rank": 1, "pid": 9, "step": 3, "loss": 0.1}'
    assert parse(line) == Event(t=1.5, event="step", rank=1, pid=9, step=3)


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    """A line that is half written now is read whole at the next look."""
    log = tmp_path / "rank-0.jsonl"
    line = '{"t": 1.0, "event": "started", "rank": 0, "pid": 1}\n'
    log.write_text(line + line[:20])
    follower = Follower(tmp_path)
    assert len(follower.events()) == 1
    log.write_text(line + line)
    assert len(follower.events()) == 2
