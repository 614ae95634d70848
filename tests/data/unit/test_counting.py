"""The count of samples over records: what is lost or doubled is found, and only that."""

from __future__ import annotations

from holdfast.data.counting import Applied, Line, LostReplica, Origin, Read, SampleCount, count

BOTH = frozenset({0, 1})


def record(
    replica: int,
    *lines: Line,
    generation: str | None = "round 1",
    start: int = 0,
) -> list[Line]:
    """Return the lines of one rank; eight samples, micro-batches of two."""
    return [Origin(replica, generation, start, samples=8, micro_batch=2), *lines]


def read(step: int, number: int, *ids: int) -> Read:
    """Return a micro-batch of the first epoch, whole."""
    return Read(step, number, 0, 0, ids)


def gave(step: int, *numbers: int, content: frozenset[int] | None = BOTH) -> Applied:
    """Return a step whose sum had two micro-batches."""
    return Applied(step, frozenset(numbers), content)


def committed(step: int) -> Applied:
    """Return a step of a reader of shards."""
    return Applied(step, frozenset(), frozenset())


def verdict(found: SampleCount) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Return samples lost and doubled, and micro-batches without a record."""
    return (
        sum(one.lost for one in found.epochs),
        sum(len(one.doubled) for one in found.epochs),
        found.missing,
    )


def test_each_sample_of_two_replicas_counts_once() -> None:
    """Two steps make an epoch of eight samples: all are used, none twice."""
    found = count(
        [
            record(0, read(1, 0, 0, 1), gave(1, 0), read(2, 0, 4, 5), gave(2, 0)),
            record(1, read(1, 1, 2, 3), gave(1, 1), read(2, 1, 6, 7), gave(2, 1)),
        ]
    )
    assert verdict(found) == (0, 0, ())
    assert found.steps == 2
    assert found.epochs[0].once == 8
    assert found.epochs[0].unused == ()


def test_a_replica_that_dies_behind_the_reduction_has_its_samples_counted() -> None:
    """It wrote what it read and no more; the other says that the sum had both micro-batches."""
    dead = record(1, read(1, 1, 2, 3))
    found = count([record(0, read(1, 0, 0, 1), gave(1, 0)), dead])
    assert verdict(found) == (0, 0, ())
    assert found.epochs[0].used == 4


def test_what_is_computed_for_a_lost_replica_counts_once() -> None:
    """Both have read it; the sum had that of the one that was left."""
    lost = record(1, read(1, 1, 2, 3))
    found = count([record(0, read(1, 0, 0, 1), read(1, 1, 2, 3), gave(1, 0, 1)), lost])
    assert verdict(found) == (0, 0, ())


def test_a_replica_that_was_given_the_gradient_counts_by_what_it_read() -> None:
    """It does not know what the sum had; the other does."""
    behind = record(1, read(1, 1, 2, 3), gave(1, content=None))
    found = count([record(0, read(1, 0, 0, 1), gave(1, 0)), behind])
    assert verdict(found) == (0, 0, ())
    assert found.epochs[0].used == 4


def test_a_micro_batch_that_two_gave_is_doubled() -> None:
    """Each says that its own sum had it."""
    found = count(
        [
            record(0, read(1, 0, 0, 1), gave(1, 0)),
            record(1, read(1, 0, 0, 1), read(1, 1, 2, 3), gave(1, 0, 1)),
        ]
    )
    assert found.epochs[0].doubled == {("", 0): 2, ("", 1): 2}


def test_ranks_of_a_replica_with_the_same_data_count_as_one() -> None:
    """As under tensor parallelism: both read the same part."""
    same = [record(0, read(1, 0, 0, 1), gave(1, 0, content=frozenset({0}))) for _ in range(2)]
    assert verdict(count(same)) == (0, 0, ())


def test_a_sum_of_which_nobody_has_the_samples_is_named() -> None:
    """The record of the lost replica is not there."""
    assert verdict(count([record(0, read(1, 0, 0, 1), gave(1, 0))])) == (0, 0, ((1, 1),))


def test_a_sample_that_one_rank_did_not_read_is_lost() -> None:
    """A rank that reads fewer than a micro-batch has."""
    found = count([record(0, read(1, 0, 0), read(1, 1, 2, 3), gave(1, 0, 1))])
    assert verdict(found) == (1, 0, ())


def test_a_step_that_no_record_has_is_a_gap() -> None:
    """The one between two that are there."""
    found = count([record(0, read(1, 0, 0, 1), gave(1), read(3, 0, 4, 5), gave(3))])
    assert found.gaps == (2,)


def test_steps_that_a_restart_does_anew_count_once() -> None:
    """A later generation goes on from step 1: what the first did behind it does not count."""
    first = record(0, read(1, 0, 0, 1), gave(1, 0), read(2, 0, 4, 5), gave(2, 0))
    other = record(1, read(1, 1, 2, 3), gave(1, 1), read(2, 1, 6, 7), gave(2, 1))
    again = record(
        0, read(2, 0, 4, 5), read(2, 1, 6, 7), gave(2, 0, 1), generation="round 2", start=1
    )
    found = count([first, other, again])
    assert verdict(found) == (0, 0, ())
    assert (found.steps, found.redone) == (2, 1)


def test_one_that_joins_does_nothing_anew() -> None:
    """It has no start of its own: what others did before stays."""
    first = read(1, 0, 0, 1), read(1, 1, 2, 3), gave(1, 0, 1)
    found = count(
        [
            record(0, *first, read(2, 0, 4, 5), gave(2, 0)),
            record(1, read(2, 1, 6, 7), gave(2, 1), generation=None),
        ]
    )
    assert verdict(found) == (0, 0, ())
    assert found.redone == 0


def test_records_of_shards_count_by_shard_and_place() -> None:
    """One record in the midst is lost, one is doubled; the second shard was not read to its end."""

    def some(step: int, shard: str, *places: int, ends: bool = False) -> Read:
        return Read(step, 0, len(places), 0, places, shard=shard, ends=ends)

    done = gave(1, content=frozenset())
    files: list[list[Line]] = [
        [Origin(0, None, 0), some(1, "a", 0, 1, 3, ends=True), done],
        [Origin(1, None, 0), some(1, "b", 0, 1, 1), done, some(2, "b", 2)],
    ]
    found = count(files).epochs[0]
    assert (found.lost, found.unused) == (1, (("a", 2),))
    assert found.doubled == {("b", 1): 2}
    assert found.unfinished == ("b",)
    assert found.used == 6


def test_others_say_which_step_of_a_lost_reader_of_shards_counts() -> None:
    """It has not said so of its last one; one that it applied alone is in nobody's weights."""
    dead = record(7, Read(1, 0, 0, 0, (0, 1), shard="a"), committed(1),
                  Read(2, 0, 0, 0, (2, 3), shard="a"))  # fmt: skip
    whole = record(
        8, LostReplica(7, 2, 3), Read(3, 0, 0, 0, (4,), shard="a", ends=True), committed(3)
    )
    found = count([dead, whole])
    assert verdict(found) == (0, 0, ())
    assert found.epochs[0].used == 5
    torn = record(
        8, LostReplica(7, 1, 2), Read(2, 0, 0, 0, (2, 3, 4), shard="a", ends=True), committed(2)
    )
    for last in ([], [committed(2)]):
        found = count([[*dead, *last], torn])
        assert verdict(found) == (0, 0, ())
        assert found.epochs[0].used == 5


def test_what_a_lost_reader_had_read_behind_a_restart_is_done_anew() -> None:
    """All go back to a checkpoint after a word about it."""
    dead = record(7, Read(1, 0, 0, 0, (0, 1), shard="a"), Read(2, 0, 0, 0, (2,), shard="a"))
    left = record(8, LostReplica(7, 2, 3))
    again = record(9, Read(2, 0, 0, 0, (2,), shard="a", ends=True), committed(2),
                   generation="round 2", start=1)  # fmt: skip
    assert verdict(count([dead, left, again])) == (0, 0, ())


def test_a_replica_that_came_back_and_was_lost_again_counts_by_both_words() -> None:
    """What it had read for the step that was torn the first time is in no sum."""
    dead = record(7, Read(8, 0, 0, 0, (0,), shard="a"), Read(9, 0, 0, 0, (1,), shard="a"),
                  committed(9), Read(12, 0, 0, 0, (2,), shard="a"))  # fmt: skip
    left = record(8, LostReplica(7, 8, 9), Read(10, 0, 0, 0, (1,), shard="a"), committed(10),
                  LostReplica(7, 12, 13), Read(13, 0, 0, 0, (), shard="a", ends=True),
                  committed(13))  # fmt: skip
    assert verdict(count([dead, left])) == (0, 0, ())
