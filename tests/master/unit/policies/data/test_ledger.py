"""The ledger of shards: leases, losses, restores, ends."""

from __future__ import annotations

from holdfast_master.policies.data.ledger import Group, Ledger, Reader
from holdfast_master.policies.data.ledger_message import message_of, of_message
from holdfast_wire.messages import ReaderClaim, ShardPosition, ShardRange

WORLD = Group(0, 1)
NEXT = Group(0, 2)
A, B = Reader(WORLD, 0), Reader(WORLD, 1)
ONE, TWO, THREE, FOUR = Group(1, 1), Group(2, 1), Group(3, 4), Group(4, 5)
IN_ONE, IN_TWO, IN_THREE = Reader(ONE, 0), Reader(TWO, 0), Reader(THREE, 0)


def ledger(shards: int = 8, epochs: int = 1) -> Ledger:
    """Return a ledger that nobody reads yet."""
    return Ledger("d", shards, epochs, "x")


def begun(readers: int = 2, shards: int = 8, epochs: int = 1) -> Ledger:
    """Return a ledger whose readers make one world, and begin."""
    made = ledger(shards, epochs)
    made.begin(WORLD, dict.fromkeys(range(readers), ReaderClaim()))
    return made


def replicated(*groups: Group, shards: int = 100) -> Ledger:
    """Return a ledger that replicas of one reader read."""
    made = ledger(shards)
    first, *others = groups
    made.begin(first, {0: ReaderClaim()})
    for group in others:
        made.join(group, 1)
    return made


def lease(made: Ledger, reader: Reader, count: int = 1) -> list[int]:
    """Lease so many shards to a reader."""
    request = made.asked.get(reader, 0) + 1
    [(_, ordinals)] = made.choose([(reader, count)])
    made.lease(reader, request, ordinals)
    return ordinals


def held(ordinal: int, position: int = 0) -> ShardPosition:
    """Return a shard that a reader had begun."""
    return ShardPosition(ordinal=ordinal, position=position)


def span(first: int, count: int = 1, stride: int = 1) -> ShardRange:
    """Return shards that a reader had done."""
    return ShardRange(first=first, count=count, stride=stride)


def test_no_two_readers_have_one_shard() -> None:
    """Leases of one moment differ, too."""
    made = begun(shards=100)
    chosen = made.choose([(A, 3), (B, 3)])
    assert chosen == [(A, [0, 1, 2]), (B, [3, 4, 5])]


def test_readers_get_less_near_the_end() -> None:
    """So that they end together: nobody gets more than its share of half of what is left."""
    made = begun(readers=2, shards=12)
    sizes = [len(lease(made, reader, 8)) for _ in range(6) for reader in (A, B)]
    assert sizes == [3, 2, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]


def test_what_is_returned_is_leased_first_and_goes_on() -> None:
    """A lost replica's shard is read on from its committed record."""
    made = replicated(ONE, TWO)
    (lost,) = lease(made, IN_ONE)
    made.commit(IN_ONE, 3, {lost: 40}, ())
    made.keep_only({TWO})
    assert lease(made, IN_TWO) == [lost]
    assert made.held(IN_TWO) == {lost: 40}


def test_a_lease_that_was_returned_cannot_be_finished_as_well() -> None:
    """A frozen replica's report comes after its shard is another's: it changes nothing."""
    made = replicated(ONE, TWO)
    (lost,) = lease(made, IN_ONE)
    made.keep_only({TWO})
    lease(made, IN_TWO)
    made.commit(IN_ONE, 5, {}, (lost,))
    assert made.held(IN_TWO) == {lost: 0}
    assert made.late == 1


def test_a_returned_lease_is_not_finished_before_it_is_leased_again() -> None:
    """The report comes while nobody has the shard: it stays to be read."""
    made = replicated(ONE, TWO)
    (lost,) = lease(made, IN_ONE)
    made.keep_only({TWO})
    made.commit(IN_ONE, 5, {lost: 9}, ())
    made.commit(IN_ONE, 5, {}, (lost,))
    assert made.returned == {lost: 0}
    assert made.late == 2


def test_a_position_never_goes_back_by_a_late_report() -> None:
    """Reports of one reader may be repeated."""
    made = begun()
    (ordinal,) = lease(made, A)
    made.commit(A, 4, {ordinal: 7}, ())
    made.commit(A, 3, {ordinal: 5}, ())
    assert made.held(A) == {ordinal: 7}


def test_a_world_goes_back_to_what_its_checkpoint_says() -> None:
    """What was read after the step is read again, and nothing else is."""
    made = begun()
    first, second = lease(made, A, 2)
    (third,) = lease(made, B)
    made.commit(A, 9, {second: 5}, (first,))
    made.commit(B, 9, {}, (third,))
    made.keep_only({NEXT})
    claims = {
        0: ReaderClaim(step=6, done=(span(first),), held=(held(second, 2),)),
        1: ReaderClaim(step=6, held=(held(third, 4),)),
    }
    made.begin(NEXT, dict(claims))
    assert made.held(Reader(NEXT, 0)) == {second: 2}
    assert made.held(Reader(NEXT, 1)) == {third: 4}
    assert made.fresh == 3
    assert not made.returned


def test_a_shard_that_was_leased_after_the_checkpoint_is_leased_anew() -> None:
    """Nobody's checkpoint names it."""
    made = begun()
    lease(made, A, 2)
    made.keep_only({NEXT})
    made.begin(NEXT, {0: ReaderClaim(step=1, held=(held(1, 3),))})
    assert made.returned == {0: 0}
    assert lease(made, Reader(NEXT, 0)) == [0]


def test_without_a_checkpoint_a_world_begins_anew() -> None:
    """Training begins at step 0, so all shards are to be read."""
    made = begun()
    lease(made, A, 2)
    made.keep_only({NEXT})
    made.begin(NEXT, {0: ReaderClaim(), 1: ReaderClaim()})
    assert (made.fresh, made.returned, made.open) == (
        0,
        {},
        {Reader(NEXT, 0): {}, Reader(NEXT, 1): {}},
    )


def test_without_claims_a_world_goes_on_with_what_is_committed() -> None:
    """A script without a checkpoint of its readers reads what is left."""
    made = begun()
    first, second = lease(made, A, 2)
    made.commit(A, 0, {second: 5}, (first,))
    made.keep_only({NEXT})
    made.begin(NEXT, {0: None})
    assert made.returned == {second: 5}
    assert made.fresh == 2


def test_a_replica_that_joins_changes_nothing() -> None:
    """It is given the others' state: what its checkpoint says is of another time."""
    made = replicated(ONE)
    (ordinal,) = lease(made, IN_ONE)
    made.join(THREE, 1)
    assert made.held(IN_ONE) == {ordinal: 0}
    assert made.held(IN_THREE) == {}
    assert lease(made, IN_THREE) == [1]


def test_replicas_go_back_to_the_step_of_one_checkpoint() -> None:
    """The first replica saves; progress of the others after that step is undone."""
    made = replicated(ONE, TWO)
    (mine,), (other,) = lease(made, IN_ONE), lease(made, IN_TWO)
    made.commit(IN_TWO, 5, {other: 10}, ())
    made.commit(IN_TWO, 8, {}, (other,))
    made.commit(IN_ONE, 7, {mine: 30}, ())  # heard after the other's step 8
    made.keep_only({THREE})
    made.begin(THREE, {0: ReaderClaim(step=5, held=(held(mine, 20),))})
    assert made.held(IN_THREE) == {mine: 20}
    assert made.returned == {other: 10}
    assert not [change for change in made.changes if change.step > 5]


def test_a_restore_beyond_what_is_kept_says_so() -> None:
    """An older step than the ledger reaches is no quiet loss."""
    made = replicated(ONE)
    made.forgotten = 9
    made.keep_only({THREE})
    assert "before step 9" in made.begin(THREE, {0: ReaderClaim(step=4)})


def test_replicas_go_back_beyond_a_step_that_they_went_back_to() -> None:
    """What the first checkpoint had done is a change since the older one: it is read again."""
    made = replicated(ONE, TWO)
    (mine,), (other,) = lease(made, IN_ONE), lease(made, IN_TWO)
    made.commit(IN_ONE, 8, {}, (mine,))  # in one report with steps 6 and 7
    made.commit(IN_TWO, 8, {other: 10}, ())
    made.keep_only({THREE})
    made.begin(THREE, {0: ReaderClaim(step=6, done=(span(mine),), held=(held(other, 5),))})
    made.keep_only({FOUR})
    assert not made.begin(FOUR, {0: ReaderClaim(step=3)})
    assert made.returned == {mine: 0, other: 0}


def test_replicas_go_back_beyond_what_is_kept_by_their_checkpoint_alone() -> None:
    """Read again is better than never: nobody knows what was done after that step."""
    made = replicated(ONE, TWO)
    first, second = lease(made, IN_ONE, 2)
    made.commit(IN_ONE, 8, {}, (first, second))
    made.forgotten, made.changes = 9, []
    made.keep_only({THREE})
    made.begin(THREE, {0: ReaderClaim(step=4, floor=1)})
    assert lease(made, IN_THREE, 2) == [second, second + 1]
    made.keep_only({FOUR})
    assert made.begin(FOUR, {0: ReaderClaim(step=3)}), "that floor was claimed, not leased"
    assert made.fresh == 0


def test_an_epoch_ends_when_all_are_leased_and_the_next_one_begins() -> None:
    """No reader waits for another one at the border."""
    made = begun(readers=1, shards=3, epochs=2)
    assert [lease(made, A)[0] for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert made.epoch == 1
    assert lease(made, A) == []
    assert made.left == 0


def test_an_endless_dataset_has_no_last_epoch() -> None:
    """Epochs go on."""
    made = begun(readers=1, shards=2, epochs=0)
    assert [lease(made, A)[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert made.epoch == 2


def test_shards_of_a_claimed_floor_are_not_read_again() -> None:
    """All before it were done by any reader: no checkpoint names them one by one."""
    made = ledger(shards=50)
    made.begin(NEXT, {0: ReaderClaim(step=4, floor=30, done=(span(32, 2, 4),))})
    assert made.fresh == 37
    assert sorted(made.returned) == [30, 31, 33, 34, 35]


def test_a_run_with_fewer_epochs_than_its_checkpoint_had_read_is_over() -> None:
    """Nobody trains on an epoch behind the last one, or waits for an end that is never told."""
    made = ledger(shards=10, epochs=2)
    claim = ReaderClaim(step=9, floor=30, done=(span(31, 2),), held=(held(34, 2),))
    made.begin(NEXT, {0: claim, 1: ReaderClaim(step=9, held=(held(19, 1),))})
    assert made.left == 0
    assert made.fresh == 20
    assert not made.returned
    assert not made.held(Reader(NEXT, 0))
    assert lease(made, Reader(NEXT, 1)) == []


def test_the_floor_is_the_first_shard_that_is_not_done() -> None:
    """Open and returned ones hold it."""
    made = begun(shards=100)
    first, second, _ = lease(made, A, 3)
    made.commit(A, 1, {}, (first,))
    assert made.floor == second


def test_a_ledger_goes_through_the_journal_and_back() -> None:
    """A base has all of it."""
    made = replicated(ONE, TWO)
    lease(made, IN_ONE, 3)
    (other,) = lease(made, IN_TWO)
    made.commit(IN_ONE, 2, {0: 4}, (1,))
    made.keep_only({TWO})
    made.commit(IN_TWO, 3, {other: 1}, ())
    assert of_message(message_of(made)) == made
    copied = made.copy()
    lease(made, IN_TWO)
    assert copied != made
