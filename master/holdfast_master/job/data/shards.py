"""Leases of shards: readers open a dataset, ask for shards, and report what is committed.

Requests of a moment become one record, and progress one record a minute: a record for each would
cost a sync each. Leases are on disk before a reader hears of them; progress that a dead master had
not written down is reported again by the readers that live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.data import Asked, Progress
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import short
from holdfast_master.policies.data import claims
from holdfast_master.policies.data import ledger as policy
from holdfast_master.policies.data.ledger import Group, Ledger, Reader
from holdfast_master.policies.data.ledger_message import message_of, named, positions
from holdfast_master.policies.quantities import counted
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

GATHER_SECONDS: Final = 0.1
"""Requests of so long become one record, s: readers ask while they still have shards."""
COMMIT_SECONDS: Final = 60.0
"""Between two records of progress, s: what is read twice if a master and a replica end at once."""
LEAVE_SECONDS: Final = 40.0
"""For so long nobody else is leased what a replica has that was told to end, s: as long as agents
take to stop, and some more. Of one that is gone sooner others tell, or it is returned then."""
LOST_SECONDS: Final = 600.0
"""For so long nobody else is leased what a lost replica has, s: others tell how far it had read
once they have met without it, which is behind their own part of the step."""
LOST_AWAITED_SECONDS: Final = 10.0
"""The same where a reader waits for just that, s: it may be the one that the others wait for."""
LEAVING_SECONDS: Final = 0.5
"""Between two looks whether they have, s, where there is nothing else to lease."""
_OF_ONE_REPLICA: Final = (
    "the checkpoint says what one replica had read, and this job has no ledger of the others: what "
    "they had read since the floor of that step is read again"
)


def opened(job: JobContext, node: Node, number: int, message: wire.ReaderOpened) -> None:
    """Note that a rank is about to read; once all of its group are, they begin."""
    group = _group(job, node, number)
    if group is None or not message.dataset or not message.shards:
        return
    problem = _problem(job, node, group, message)
    if problem:
        _refuse(job, node, number, message, problem)
        return
    reader = Reader(group, message.rank)
    job.data.nodes.setdefault(message.dataset, {})[reader] = node.rank
    _note_asked(job, node, reader, message, request=1)
    known, key = job.state.ledgers.get(message.dataset), (message.dataset, group)
    if known is not None and group in known.groups:  # said again to a new master
        return
    openings = job.data.openings.setdefault(key, {})
    openings[message.rank] = message
    if len(openings) >= message.readers:
        del job.data.openings[key]
        _begin(job, group, dict(sorted(openings.items())))


def _problem(job: JobContext, node: Node, group: Group, message: wire.ReaderOpened) -> str:
    """Why a reader is leased nothing; empty: it is leased what it asks for."""
    name, known = message.dataset, job.state.ledgers.get(message.dataset)
    found = claims.problem(message)
    if known is not None and known.groups:
        found = found or _mismatch(known, message)
        found = found or _miscount(known.groups.get(group, message.readers), message)
    first = next(iter(job.data.openings.get((name, group), {}).values()), None)
    if first is not None:
        found = found or _mismatch(first, message) or _miscount(first.readers, message)
    there = job.data.nodes.get(name, {}).get(Reader(group, message.rank), node.rank)
    if not found and there != node.rank:
        return (
            f"node {there} has reader {message.rank} of dataset {name}: give each its own `place`"
        )
    return found


def _group(job: JobContext, node: Node, number: int) -> Group | None:
    """The readers among which those of a node are; None: they are of no world that goes on."""
    world = job.worlds.in_replica(node.rank, node.agent_id, number)
    world = world or job.worlds.running_with(node, number)
    if world is None:
        return None
    replica = world.places[node.rank].replica
    return Group(replica.number, world.round_of(node.rank))


def _mismatch(known: Ledger | wire.ReaderOpened, message: wire.ReaderOpened) -> str:
    """The difference between two readers' datasets of one name; empty: there is none."""
    if (known.shards, known.epochs) != (message.shards, message.epochs):
        mine = f"{known.shards} shards and {known.epochs or 'endless'} epochs"
        its = f"{message.shards} and {message.epochs or 'endless'}"
        return f"other readers of dataset {message.dataset} have {mine}, this one {its}"
    if known.digest != message.digest:
        return f"other readers of dataset {message.dataset} have another list or order of shards"
    return ""


def _miscount(readers: int, message: wire.ReaderOpened) -> str:
    """The difference between two readers' counts of their group; empty: there is none."""
    if readers == message.readers:
        return ""
    return (
        f"other readers of dataset {message.dataset} say that {readers} read it, this one "
        f"{message.readers}: give all the same `place` count"
    )


def _refuse(
    job: JobContext, node: Node, number: int, message: wire.ReaderOpened, problem: str
) -> None:
    text = f"rank {message.rank} of round {number} is leased no shards: {problem}"
    job.out.warn(EventReason.READER_REFUSED, text, node=node.rank)
    refusal = wire.ShardsLeased(dataset=message.dataset, rank=message.rank, refused=problem)
    job.out.send(node, refusal, number)


def _begin(job: JobContext, group: Group, opened: Mapping[int, wire.ReaderOpened]) -> None:
    """Have a group of readers begin: what their checkpoints say becomes the ledger."""
    message = next(iter(opened.values()))
    name, known = message.dataset, job.state.ledgers.get(message.dataset)
    if known is not None and known.groups:
        replica, number = group
        readers = wire.ReaderGroup(replica=replica, round=number, readers=len(opened))
        job.out.record(wire.ReadersJoined(dataset=name, group=readers))
        return
    flush(job)
    given = {rank: one.claim for rank, one in opened.items()}
    step = max((claim.step for claim in given.values() if claim is not None), default=0)
    made, lost = Ledger(name, message.shards, message.epochs, message.digest), ""
    if known is not None and not _mismatch(known, message):
        made = known.copy()
    elif group.replica and step:
        lost = _OF_ONE_REPLICA
    made.placed = bool(group.replica) and all(one.placed for one in opened.values())
    job.data.floors.pop(name, None)  # of steps that may come again
    lost = made.begin(group, given) or lost
    job.out.record(message_of(made), durable=True)
    count = counted(len(opened), "reader")
    text = f"dataset {short(name)}: {count} of round {group.round} begin at step {step}"
    job.out.event(EventReason.READERS_BEGAN, text)
    if lost:
        text = f"dataset {short(name)} does not go back to step {step} whole: {lost}"
        job.out.warn(EventReason.SHARDS_NOT_RESTORED, text)
    deal(job)


def reported(job: JobContext, node: Node, number: int, message: wire.ReaderReport) -> None:
    """Note a reader's progress, and its request."""
    own = _group(job, node, number)
    group = own or _leaving(job, node, number)
    if group is None or not message.dataset:
        return
    reader = Reader(group, message.rank)
    if message.positions or message.done:
        noted = job.data.progress.setdefault(message.dataset, {})
        noted.setdefault(reader, Progress()).add(message)
        job.timers.ensure(Timer.SHARDS, job.now + COMMIT_SECONDS)
    if own is not None:
        _note_asked(job, node, reader, message, request=message.request)
    if message.lost:
        _note_lost(job, message)


def _note_lost(job: JobContext, message: wire.ReaderReport) -> None:
    """Note how far readers of lost replicas had read; who was in a later roster was not lost."""
    ledger, roster = job.state.ledgers.get(message.dataset), job.state.roster
    if ledger is None:
        return
    there = roster.replicas if roster is not None else ()
    told = job.data.told.setdefault(message.dataset, {})
    for one in message.lost:
        for reader in ledger.readers_of(one.replica):
            known = told.get(reader)
            is_newer = known is None or one.step > known.step
            is_lost = one.replica not in there
            is_lost &= one.epoch >= job.data.members.get(one.replica, 0)
            if reader.rank == message.rank and is_lost and is_newer:
                told[reader] = one
    _end_told(job, ledger, {one.replica for one in message.lost})


def _end_told(job: JobContext, ledger: Ledger, replicas: Collection[int] | None = None) -> None:
    """Return what lost groups have left where others have told how far each reader had read.

    replicas: Of the groups that are looked at; None: of all.
    """
    told = job.data.told.get(ledger.name, {})
    looked_at = [one for one in ledger.lost if replicas is None or one.replica in replicas]
    for group in sorted(looked_at if told else []):
        readers = {one for one in ledger.readers_of(group.replica) if one.group == group}
        if readers <= told.keys():
            _return(job, ledger, group)


def _leaving(job: JobContext, node: Node, number: int) -> Group | None:
    """The readers among which those of a node were, which was told to end; None: of none."""
    groups = (group for one in job.state.ledgers.values() for group in one.leaving.items())
    return next((one for one, ranks in groups if one.round == number and node.rank in ranks), None)


def left_out(
    job: JobContext, replicas: Collection[int], nodes: Collection[int]
) -> tuple[tuple[wire.LeavingReaders, ...], tuple[wire.ReaderGroup, ...]]:
    """The replicas that read shards and that the next world leaves out: to end, and lost.

    A process that had died is known to be lost where another one starts in its place.

    Args:
        job: The job.
        replicas: Numbers of those that go on.
        nodes: Node ranks of the next world.
    """
    ledgers = job.state.ledgers.values()
    if not ledgers or job.state.assigned is None:
        return (), ()
    agents = {rank: node.agent_id for rank, node in job.state.nodes.items()}
    leaving, lost = policy.left_out(job.state.assigned, replicas, agents)
    told = {Group(one.replica, one.round): frozenset(one.node_ranks) for one in leaving}
    for ledger in ledgers:
        told |= ledger.leaving
    goes_on = any(one.number in replicas for one in job.state.assigned.replicas)
    dead = [one for one, ranks in told.items() if goes_on and not ranks.isdisjoint(nodes)]
    groups = sorted({Group(one.replica, one.round) for one in lost}.union(dead))
    return tuple(leaving), tuple(wire.ReaderGroup(replica=r, round=n) for r, n in groups)


def await_leaving(job: JobContext) -> None:
    """Have readers return what they have in time: that were told to end, or that are lost."""
    for ledger in job.state.ledgers.values():
        _end_told(job, ledger)
        for group in ledger.leaving:
            job.timers.ensure(Timer.READERS_LEAVE, job.now + LEAVE_SECONDS, group.replica)
        for group in ledger.lost:
            job.timers.ensure(Timer.READERS_LOST, job.now + LOST_SECONDS, group.replica)


def ended_groups(job: JobContext) -> set[Group]:
    """Groups whose processes end or have ended, and of which something is still to be told."""
    return {one for each in job.state.ledgers.values() for one in (*each.leaving, *each.lost)}


def leave_due(job: JobContext, replica: int) -> None:
    """Readers that were told to end have not, or stand by: others read what they have left."""
    for ledger in list(job.state.ledgers.values()):
        _return_of(job, ledger, replica, ledger.leaving)


def lost_due(job: JobContext, replica: int) -> None:
    """Nobody has told how far lost readers had read: what they had committed counts."""
    for ledger in list(job.state.ledgers.values()):
        _return_of(job, ledger, replica, ledger.lost)


def _return_of(job: JobContext, ledger: Ledger, replica: int, groups: Collection[Group]) -> None:
    for group in [one for one in groups if one.replica == replica]:
        _return(job, ledger, group)


def _return(job: JobContext, ledger: Ledger, group: Group) -> None:
    """Return what a group has left, by what is known of it."""
    flush(job)
    told = job.data.told.get(ledger.name, {})
    mine = {one.rank: told.pop(one) for one in sorted(told) if one.group == group}
    fact = wire.ReadersEnded(
        dataset=ledger.name,
        group=wire.ReaderGroup(replica=group.replica, round=group.round),
        ranks=tuple(mine),
        lost=tuple(mine.values()),
    )
    job.out.record(fact, durable=True)


def node_goes(job: JobContext, rank: int) -> None:
    """A node is about to be gone: what its readers have reported is written down before it."""
    if any(rank in ranks for one in job.state.ledgers.values() for ranks in one.leaving.values()):
        flush(job)


def _note_asked(
    job: JobContext,
    node: Node,
    reader: Reader,
    message: wire.ReaderOpened | wire.ReaderReport,
    *,
    request: int,
) -> None:
    if message.wanted:
        asked = Asked(node.rank, node.agent_id, request, message.wanted)
        job.data.asked.setdefault(message.dataset, {})[reader] = asked
        job.timers.ensure(Timer.LEASES, job.now + GATHER_SECONDS)


def deal(job: JobContext) -> None:
    """Lease shards to all readers that ask and whose group has begun."""
    for name in sorted(job.data.asked):
        asked, ledger = job.data.asked[name], job.state.ledgers.get(name)
        ready = sorted(
            reader for reader in asked if ledger is not None and reader.group in ledger.groups
        )
        if ledger is not None and ready and (ledger.leaving or ledger.lost) and not ledger.left:
            # These are not the last ones: they are told so once it is known what comes back.
            job.timers.ensure(Timer.LEASES, job.now + LEAVING_SECONDS)
            _await_lost(job, ledger)
        elif ledger is not None and ready:
            _lease(job, ledger, {reader: asked.pop(reader) for reader in ready})
        if not asked:
            del job.data.asked[name]


def _await_lost(job: JobContext, ledger: Ledger) -> None:
    """Have a reader wait for what lost ones have left, and not for long."""
    for group in ledger.lost:
        due = job.timers.due(Timer.READERS_LOST, group.replica)
        if due is None or due > job.now + LOST_AWAITED_SECONDS:
            job.timers.set(Timer.READERS_LOST, job.now + LOST_AWAITED_SECONDS, group.replica)


def _lease(job: JobContext, ledger: Ledger, asked: Mapping[Reader, Asked]) -> None:
    news = [(r, one.wanted) for r, one in asked.items() if one.request > ledger.asked.get(r, 0)]
    chosen = [(reader, ordinals) for reader, ordinals in ledger.choose(news) if ordinals]
    if chosen:
        leases = tuple(
            wire.ReaderLeases(
                reader=named(reader),
                request=asked[reader].request,
                ordinals=tuple(ordinals),
            )
            for reader, ordinals in chosen
        )
        fact = wire.ShardsGiven(dataset=ledger.name, leases=leases)
        job.out.record(fact, durable=True)
    over, given = ledger.left == 0, {reader for reader, _ in chosen}
    floor, floor_step = job.data.floors.get(ledger.name, (0, 0))
    noted = job.data.progress.get(ledger.name, {})
    # Of a plain world a checkpoint says what was read, whatever is reported.
    replicas = sum(count for group, count in ledger.groups.items() if group.replica)
    pace = policy.progress_seconds(replicas)
    for reader, one in asked.items():
        node = job.membership.agent(one.node_rank, one.agent_id)
        if node is not None:
            done = noted[reader].done if reader in noted else ()
            held = {o: at for o, at in ledger.held(reader).items() if o not in done}
            answer = wire.ShardsLeased(
                dataset=ledger.name,
                rank=reader.rank,
                request=one.request,
                held=positions(held),
                ended=over and reader not in given,
                floor=floor,
                floor_step=floor_step,
                progress_seconds=pace,
            )
            job.out.send(node, answer, reader.group.round)


def flush(job: JobContext) -> None:
    """Write down what readers have committed; before a world is decided, and once a minute."""
    job.timers.cancel(Timer.SHARDS)
    noted, job.data.progress = job.data.progress, {}
    for name, readers in sorted(noted.items()):
        ledger = job.state.ledgers.get(name)
        if ledger is None:
            continue
        fact = wire.ShardsCommitted(
            dataset=name,
            readers=tuple(
                wire.ReaderProgress(
                    reader=named(reader),
                    step=one.step,
                    positions=positions(one.positions),
                    done=tuple(one.done),
                )
                for reader, one in sorted(readers.items())
            ),
        )
        job.out.record(fact)
        job.data.floors[name] = (ledger.floor, ledger.newest) if ledger.newest else (0, 0)


def report_unread(job: JobContext) -> None:
    """Say at the end of a job what nobody was left to read."""
    flush(job)
    for name, ledger in sorted(job.state.ledgers.items()):
        if ledger.unread:
            left = counted(ledger.unread, "shard")
            text = (
                f"the job ended, and no reader has committed all of {left} of dataset "
                f"{short(name)}: the last ones had ended, or were lost, when nobody else could "
                "read them; a job that goes on from the checkpoint does"
            )
            job.out.warn(EventReason.SHARDS_NOT_READ, text)
