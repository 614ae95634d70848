"""Shards in a script: with its agent's relay and a ledger, and without an agent."""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.data.shard_link import AgentSource, ShardError
from holdfast.data.shard_state import of_plain
from holdfast.data.shards import ShardReader, ShardRecord
from holdfast_agent.workers import shard_relay
from holdfast_agent.workers.shard_relay import ShardRelay
from holdfast_master.policies.data.ledger import Group, Ledger, Reader
from holdfast_master.policies.data.ledger_message import positions
from holdfast_wire import keys
from holdfast_wire.messages import ReaderClaim, ReaderOpened, ReaderReport, ShardsLeased

SIZES = [3, 1, 4, 1, 5, 9, 2, 6]
NAMES = [f"shard-{index}" for index in range(len(SIZES))]


def read(shard: str, start: int) -> Iterator[tuple[str, int]]:
    """Return the records of a shard."""
    size = SIZES[NAMES.index(shard)]
    return iter([(shard, record) for record in range(start, size)])


def once(records: list[ShardRecord[tuple[str, int]]], epochs: int = 1) -> None:
    """Assert that each record is there once for each epoch."""
    found = collections.Counter((one.epoch, *one.value) for one in records)
    wanted = {
        (epoch, name, record)
        for epoch in range(epochs)
        for name, size in zip(NAMES, SIZES, strict=True)
        for record in range(size)
    }
    assert found.keys() == wanted
    assert set(found.values()) == {1}
    assert all((one.shard, one.position) == one.value for one in records)


def take(shards: ShardReader[Any], count: int) -> list[ShardRecord[Any]]:
    """Take so many records, or those that are left."""
    return [record for _, record in zip(range(count), shards, strict=False)]


class Master:
    """A ledger behind an agent's relay, on an event loop of its own."""

    def __init__(self, folder: Path) -> None:
        """Listen."""
        self.folder = folder
        self.ledger: Ledger | None = None
        self.away = False
        """No word reaches it."""
        self.pace = 0.0  # s between two reports of a reader that it asks for; 0: it does not
        self.openings: dict[int, dict[int, ReaderOpened]] = {}
        self.asked: list[tuple[Reader, int, int]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.relay = self.on_loop(self._listen)

    def on_loop(self, work: Any) -> Any:
        """Run a function on the event loop."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10.0)

    def _listen(self) -> ShardRelay:
        relay = ShardRelay(lambda: self.folder, self.report)
        self.path = relay.begin()[keys.ENV_DATA]
        return relay

    def close(self) -> None:
        """End the agent."""
        self.on_loop(self.relay.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def report(self, message: Any, number: int) -> None:
        """Take a word of a reader."""
        if self.away:
            return
        group = Group(0, number)
        reader = Reader(group, message.rank)
        if isinstance(message, ReaderOpened):
            self.open(group, message)
        elif self.ledger is not None:
            held = {one.ordinal: one.position for one in message.positions}
            self.ledger.commit(reader, message.step, held, message.done)
        if message.wanted:
            request = message.request if isinstance(message, ReaderReport) else 1
            self.asked.append((reader, request, message.wanted))
        self.deal()

    def open(self, group: Group, message: ReaderOpened) -> None:
        """Begin once all readers are known."""
        if self.ledger is None:
            self.ledger = Ledger(message.dataset, message.shards, message.epochs, message.digest)
        if group in self.ledger.groups:
            return
        opened = self.openings.setdefault(group.round, {})
        opened[message.rank] = message
        if len(opened) == message.readers:
            self.ledger.keep_only({group})
            claims = {rank: one.claim for rank, one in opened.items()}
            self.ledger.begin(group, claims)

    def deal(self) -> None:
        """Answer all that can be answered."""
        ledger, asked, self.asked = self.ledger, self.asked, []
        for reader, request, wanted in asked:
            if ledger is None or reader.group not in ledger.groups:
                self.asked.append((reader, request, wanted))
                continue
            chosen: list[int] = []
            if request > ledger.asked.get(reader, 0):
                [(_, chosen)] = ledger.choose([(reader, wanted)])
                ledger.lease(reader, request, chosen)
            leased = ShardsLeased(
                dataset=ledger.name,
                rank=reader.rank,
                request=request,
                held=positions(ledger.held(reader)),
                ended=not chosen and not ledger.left,
                floor=ledger.floor if ledger.newest else 0,
                floor_step=ledger.newest,
                progress_seconds=self.pace,
            )
            self.relay.on_leased(leased, reader.group.round)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    """A ledger behind an agent."""
    found = Master(tmp_path)
    yield found
    found.close()


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the readers of a world: `rank(number, world, round, path)` is the environment."""

    def enter(
        number: int, world: int, round_number: int = 0, path: str = "", replica: int = 0
    ) -> None:
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setenv(keys.ENV_ROUND, str(round_number))
        monkeypatch.setenv(keys.ENV_DATA, path)
        monkeypatch.setenv(keys.ENV_REPLICA, str(replica))

    return enter


def readers(rank: Any, world: int, round_number: int = 1, path: str = "", **more: Any) -> list[Any]:
    """The readers of a world."""
    made = []
    for number in range(world):
        rank(number, world, round_number, path)
        made.append(ShardReader(NAMES, read, seed=7, **more))
    return made


def restored(states: list[dict[str, Any]], made: list[ShardReader[Any]]) -> None:
    """Have the readers of a world load the states of another, as the checkpoint does."""
    for number, one in enumerate(made):
        if len(states) == len(made):
            one.load_state_dict(states[number])
        else:
            one.load_state_dict(one.reshard(states, number, len(made)))


def begun(made: list[ShardReader[Any]], count: int = 0) -> list[ShardRecord[Any]]:
    """Have all readers begin at once, which a world's do, and take some records each."""
    found: list[list[ShardRecord[Any]]] = [[] for _ in made]

    def run(number: int) -> None:
        found[number] = take(made[number], count or 10**6)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(made))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20.0)
    return [record for one in found for record in one]


def test_readers_of_a_world_read_each_record_once(master: Master, rank: Any) -> None:
    """All epochs, whoever is fast."""
    once(begun(readers(rank, 3, path=master.path, epochs=3)), epochs=3)


@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("agent", [True, False], ids=["agent", "alone"])
def test_a_checkpoint_goes_on_in_a_world_of_any_size(
    master: Master, rank: Any, after: int, *, agent: bool
) -> None:
    """What was read before it is not read again; what was read after it is."""
    path = master.path if agent else ""
    old = readers(rank, 3, path=path, epochs=2)
    records = begun(old, 4)
    for one in old:
        one.commit(4)
    states = [one.state_dict() for one in old]
    begun(old, 3)  # of steps that are lost
    new = readers(rank, after, 2, path, epochs=2)
    restored(states, new)
    once(records + begun(new), epochs=2)


def test_a_state_with_an_agent_goes_on_without_one(master: Master, rank: Any) -> None:
    """And the other way round."""
    old = readers(rank, 2, path=master.path)
    records = begun(old, 5)
    middle = readers(rank, 3)
    restored([one.state_dict() for one in old], middle)
    records += begun(middle, 2)
    new = readers(rank, 2, 3, master.path)
    restored([one.state_dict() for one in middle], new)
    once(records + begun(new))


def test_one_rank_of_several_does_not_guess_what_others_had_done(master: Master, rank: Any) -> None:
    """Without an agent it has only its own state where the world's size is the same."""
    old = readers(rank, 2, path=master.path)
    begun(old, 2)
    rank(0, 2)
    with pytest.raises(ShardError, match="holdfast-run"):
        ShardReader(NAMES, read, seed=7).load_state_dict(old[0].state_dict())


def test_fewer_epochs_than_the_checkpoint_had_read_are_over_at_once(rank: Any) -> None:
    """Without an agent, too: the shard that it had begun is behind the last epoch."""
    rank(0, 1)
    first = ShardReader(NAMES, read, epochs=2)
    take(first, sum(SIZES) + 2)
    again = ShardReader(NAMES, read, epochs=1)
    again.load_state_dict(first.state_dict())
    assert take(again, 1) == []


def test_a_reader_that_cannot_seek_reads_a_shard_twice_and_says_so_once(rank: Any) -> None:
    """The count has all records that were read again."""
    rank(0, 1)
    first = ShardReader(NAMES, read, seekable=False)
    take(first, 2)  # of the first shard's three
    again = ShardReader(NAMES, lambda shard, _: read(shard, 0), seekable=False)
    again.load_state_dict(first.state_dict())
    with pytest.warns(RuntimeWarning, match=r"2 records twice"):
        assert next(again).position == 0
    assert len(take(again, 100)) == sum(SIZES) - 1
    assert again.repeated == 2


def test_shards_are_shuffled_alike_on_all_ranks_and_anew_in_each_epoch(rank: Any) -> None:
    """By the seed alone."""
    rank(0, 1)

    def order(seed: int | None) -> list[str]:
        shards = ShardReader(NAMES, read, epochs=2, seed=seed)
        return [one.shard for one in shards if one.position == 0]

    assert order(7) == order(7) != order(8)
    assert order(7)[:8] != order(7)[8:]
    assert order(None) == NAMES * 2


def test_a_new_master_without_a_journal_learns_from_the_agent(master: Master, rank: Any) -> None:
    """What is done stays done, and what is held stays with its reader."""
    made = readers(rank, 2, path=master.path, epochs=2)
    records = begun(made, 6)
    for one in made:
        one.commit(1)

    def reborn() -> None:
        assert master.ledger is not None
        master.ledger, master.openings, master.asked = None, {}, []
        master.relay.restate()

    master.on_loop(reborn)
    once(records + begun(made), epochs=2)


def test_a_request_that_a_master_did_not_hear_is_made_again(master: Master, rank: Any) -> None:
    """By the agent, when the next master is there."""
    made = readers(rank, 1, path=master.path)
    master.away = True
    found: list[ShardRecord[Any]] = []
    thread = threading.Thread(target=lambda: found.extend(take(made[0], 10**6)))
    thread.start()
    wait(master, lambda: bool(master.relay._processes))

    def back() -> None:
        master.away = False
        master.relay.restate()

    wait(master, lambda: any(one.readers for one in master.relay._processes.values()))
    master.on_loop(back)
    thread.join(20.0)
    once(found)


def test_a_later_request_that_was_not_heard_is_made_again_too(master: Master, rank: Any) -> None:
    """With all that was read meanwhile."""
    shards = readers(rank, 1, path=master.path)[0]
    found = take(shards, 1)
    master.on_loop(lambda: setattr(master, "away", True))
    thread = threading.Thread(target=lambda: found.extend(take(shards, 10**6)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()

    def back() -> None:
        master.away = False
        master.relay.restate()

    master.on_loop(back)
    thread.join(20.0)
    once(found)


def test_what_a_replica_has_committed_outlives_it(master: Master, rank: Any) -> None:
    """Each commit goes to the agent, and on to the master at the process's end."""
    rank(0, 1, 1, master.path, replica=4)
    shards = ShardReader(NAMES, read, seed=None)
    take(shards, 2)
    shards.commit(1)
    take(shards, 4)  # of shards of 3, 1 and 4 records
    shards.commit(2)
    take(shards, 1)  # of a step that is never made
    ledger = master.ledger
    assert ledger is not None
    reader = Reader(Group(0, 1), 0)
    assert ledger.newest == 1, "that came with a request; what follows was not told yet"
    shards.close()
    wait(master, lambda: ledger.newest == 2)
    assert min(ledger.open[reader].items()) == (2, 2)


@pytest.mark.parametrize("ends", [False, True], ids=["open", "ended"])
def test_a_second_reader_of_one_name_is_refused(master: Master, rank: Any, *, ends: bool) -> None:
    """It would read the first one's shards in its own list, or, in the next epoch, nothing."""
    first = readers(rank, 1, path=master.path)[0]
    take(first, 2)
    if ends:
        first.close()
        wait(master, lambda: not master.relay._processes)
    second = readers(rank, 1, path=master.path)[0]
    with pytest.raises(ShardError, match="reader 0 of dataset data was opened before in round 1"):
        next(second)
    if not ends:
        assert len(take(first, 100)) == sum(SIZES) - 2


def test_shards_done_during_minutes_without_a_master_are_told_to_the_next_one(
    master: Master, rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their reports were dropped: they would be leased again if this replica is lost later."""
    monkeypatch.setattr(shard_relay, "UNSURE_SECONDS", 0.0)
    monkeypatch.setattr(shard_relay, "FORWARD_SECONDS", 0.01)
    rank(0, 1, 1, master.path, replica=4)
    shards = ShardReader(NAMES, read, seed=None)
    take(shards, 2)
    shards.commit(1)
    master.on_loop(lambda: setattr(master, "away", True))
    take(shards, 2)  # the end of the first shard, and the second
    for step in (2, 3):  # the second report finds the first one too old to be made again
        shards.commit(step)
        wait(master, lambda: is_forwarded(master, step))  # noqa: B023
    ledger = master.ledger
    assert ledger is not None
    assert 0 in ledger.held(Reader(Group(0, 1), 0))

    def back() -> None:
        master.away = False
        master.relay.restate()

    master.on_loop(back)
    assert take(shards, 2)
    wait(master, lambda: 0 not in ledger.held(Reader(Group(0, 1), 0)))


def test_each_commit_is_reported_where_the_master_asks_for_it(master: Master, rank: Any) -> None:
    """Of a replica that is lost with its agent only what is on its way is read again."""
    master.pace = 0.01
    rank(0, 1, 1, master.path, replica=4)
    shards = ShardReader(NAMES, read, seed=None)
    take(shards, 1)
    for step in (1, 2):  # within the first shard: there is no request that would tell it
        shards.commit(step)
        wait(master, lambda: is_forwarded(master, step))  # noqa: B023
        assert master.ledger is not None
        assert master.ledger.held(Reader(Group(0, 1), 0))[0] == step
        take(shards, 1)


def is_forwarded(master: Master, step: int) -> bool:
    """Whether the agent has reported all that was committed with a step."""
    processes = master.relay._processes.values()
    states = [one.state for process in processes for one in process.readers.values()]
    return all(one._step == step and not one.waits for one in states)


def test_what_a_replica_read_for_its_first_step_is_not_committed_before_it(
    master: Master, rank: Any
) -> None:
    """A request goes out within that step: if it is never made, others read the shards."""
    rank(0, 1, 1, master.path, replica=4)
    shards = ShardReader(NAMES, read, seed=None)
    take(shards, 4)  # all of the first shard, and of the second one
    shards.close()
    wait(master, lambda: not master.relay._processes)
    ledger = master.ledger
    assert ledger is not None
    held = ledger.held(Reader(Group(0, 1), 0))
    assert {0: held.get(0), 1: held.get(1)} == {0: 0, 1: 0}


def test_a_reader_at_the_end_reads_what_is_returned_later(
    master: Master, rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that held the last shards may be lost after the others were told of the end."""
    first, second = readers(rank, 2, path=master.path)
    records = begun([first, second], 1)
    lost = [one for one in records if one.shard == records[1].shard]
    records = [records[0], *take(first, 1000)]
    assert take(first, 1) == []
    ledger = master.ledger
    assert ledger is not None
    master.on_loop(lambda: ledger.keep_only(set()))
    asked = ledger.asked.copy()
    assert take(first, 1) == [], "it asks from time to time alone"
    assert ledger.asked == asked
    ledger.groups[Group(0, 1)] = 2
    monkeypatch.setattr(first, "_again_at", 0.0)
    records += take(first, 1000)
    assert lost[0] in records
    once(records)


def test_a_shard_whose_last_record_ends_a_step_is_committed_with_it(
    master: Master, rank: Any
) -> None:
    """Its end shows behind the last commit, where a loop over a stream ends without another one."""
    rank(0, 1, 1, master.path, replica=4)
    shards = ShardReader(NAMES, read, seed=None)
    step = 0
    while take(shards, 1):
        step += 1
        shards.commit(step)
    ledger = master.ledger
    assert ledger is not None
    wait(master, lambda: not ledger.unread)


def wait(master: Master, true: Any) -> None:
    """Wait until something holds on the agent's loop."""
    for _ in range(2000):
        if master.on_loop(true):
            return
        threading.Event().wait(0.005)
    raise AssertionError("never")


def test_what_is_done_leaves_the_state_once_all_before_it_is(master: Master, rank: Any) -> None:
    """A state does not grow with the epochs."""
    shards = readers(rank, 1, path=master.path, epochs=400)[0]
    longest = 0
    for step in range(1, 1200):
        assert take(shards, 10)
        shards.commit(step)
        longest = max(longest, len(str(shards.state_dict())))
    assert of_plain(shards.state_dict()).floor > 200
    assert longest < 1_000


def test_a_reader_whose_agent_has_ended_says_so(master: Master, rank: Any) -> None:
    """It does not wait for anybody."""
    source = AgentSource(master.path, 1)
    master.on_loop(lambda: None)
    source.open(ReaderOpened(dataset="d", shards=1, readers=2, claim=ReaderClaim()))
    wait(master, lambda: any(one.readers for one in master.relay._processes.values()))
    master.on_loop(lambda: [master.relay._drop(one) for one in list(master.relay._processes)])
    with pytest.raises(ShardError, match="agent has ended"):
        source.answer()
    with pytest.raises(ShardError, match="leases no shards"):
        AgentSource(str(Path(master.path).with_name("nobody")), 1)
    source.close()
