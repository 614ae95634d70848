"""Messages between agent and master: which are accepted, what an order means, what is said again.

A stream has no acknowledgements: its last messages may be lost with it. The hello has the present
state; events (exits, barriers) are repeated from here. The master accepts repeats.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast_wire.messages import (
    AssignmentMode,
    BarrierAck,
    BarrierReached,
    CommitAnnounced,
    CommitGrant,
    FailureRule,
    Fence,
    FlushToStorage,
    Leave,
    NoticeReceived,
    ReleaseCheckpoints,
    ReplicaReady,
    RestorePlan,
    RosterFailed,
    RoundStarted,
    RoundStopped,
    SessionRequest,
    SessionResponse,
    SetBarrier,
    SetSchedule,
    StateDigest,
    StopRound,
    SyncChosen,
    Welcome,
    WorkerExited,
    WorldAssignment,
)


def refusal(known: Fence, got: Fence | None, *, about_round: bool) -> str:
    """Return the reason to drop a message with the fence `got`; empty: it is accepted.

    known: newest fence that this agent has accepted.
    about_round: the message is about the round in its fence (an assignment, a barrier, a stop): an
        older round makes it void. Other messages only need a living master.
    """
    if got is None or got.epoch == 0:
        return "it carries no fence"
    if got.epoch < known.epoch:
        return "it is from an older master"
    if got.epoch == known.epoch and got.incarnation != known.incarnation:
        return "it is from another master of the same epoch"
    if about_round and got.round < known.round:
        return "it is about an older round"
    return ""


ABOUT_ROUND = (WorldAssignment, StopRound, SetBarrier, RestorePlan, ReleaseCheckpoints, SetSchedule)
"""Messages that an older round in the fence makes void."""
ABOUT_CHECKPOINTS = (RestorePlan, CommitGrant, CommitAnnounced, ReleaseCheckpoints, FlushToStorage)
"""Messages for this node's checkpoint server, which outlives its training processes."""


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedMessage:
    """A message judged by its fence."""

    refused: str
    """Reason to drop it; empty: it is accepted."""
    accepted: Fence
    """Newest fence from now on."""
    round: int
    """For an assignment, the newest round before it; for other messages, the round in their
    fence."""


def judge(known: Fence, response: SessionResponse) -> JudgedMessage:
    """Judge a message, with the newest accepted fence `known`; a refused one has no effect."""
    got, message = response.fence, response.message
    refused = refusal(known, got, about_round=isinstance(message, ABOUT_ROUND))
    if refused or got is None:
        return JudgedMessage(refused, known, 0)
    # An assignment that only reconfigures begins no round.
    if isinstance(message, WorldAssignment) and message.mode is not AssignmentMode.RECONFIGURE:
        newest = max(known.round, got.round)
        return JudgedMessage("", dataclasses.replace(got, round=newest), known.round)
    return JudgedMessage("", dataclasses.replace(got, round=known.round), got.round)


def concerns_ending(message: object) -> bool:
    """Return True if an agent that is ending acts on a message that its fence allows.

    Of the orders it obeys only a stop without a grace: the others go on without this node, and its
    processes, which have a grace to end in, must not train beside them.
    """
    if isinstance(message, StopRound):
        return message.grace_seconds <= 0
    return isinstance(message, (Welcome, *ABOUT_CHECKPOINTS))


def may_open(first: object) -> bool:
    """Return True if a stream may begin with this message.

    A Leave says that a newer agent has taken this one's place; no message follows.
    """
    return isinstance(first, (Welcome, Leave))


def newer_digest(known: StateDigest | None, got: StateDigest) -> bool:
    """Return True if a digest is newer than the known one: by epoch, then by sequence."""
    if known is None or known.fence is None or got.fence is None:
        return True
    return (got.fence.epoch, got.sequence) > (known.fence.epoch, known.sequence)


def why_not_started(own_round: int, new_round: int, local_world_size: int, offered: int) -> str:
    """Return the reason to ignore an assignment whose fence was accepted; empty: it is started.

    own_round: newest round that was assigned here; 0: none.
    local_world_size, offered: number of processes in the assignment, and of this node.
    """
    if new_round == own_round:
        return f"round {new_round} was assigned before"
    if new_round < own_round:
        return f"round {new_round} is older than {own_round}"
    if local_world_size != offered:
        return f"the assignment asks for {local_world_size} processes, this node said {offered}"
    return ""


def why_killed(own_round: int, master_round: int, *, alive: bool) -> str:
    """Return the reason to kill the workers after the answer to a hello; empty: they live on.

    Only the round that the master knows may. own_round: round of the processes here; master_round:
    the master's round, 0: none.
    """
    if not alive or own_round == master_round:
        return ""
    return f"round {own_round} runs here, the master knows {master_round or 'none'}"


def why_not_stopped(own_round: int, stop_round: int, *, alive: bool) -> str:
    """Return the reason to ignore a stop order about `stop_round`; empty: the workers are stopped.

    Its fence was accepted, so it is not older.
    """
    if not alive:
        return "nothing runs here"
    if stop_round not in (0, own_round):
        return f"round {own_round} runs here, not {stop_round}"
    return ""


def warmth_unknown(*, warm: bool, said: bool, cold_reason: str) -> bool:
    """Return True if a master that has just welcomed this agent must be told of its zygote's state.

    said: its hello said so. A zygote that became ready between hello and Welcome was not reported,
    and a hello has no field for the reason of cold starts.
    """
    return warm and (not said or bool(cold_reason))


REPEATED = (
    WorkerExited,
    RoundStarted,
    RoundStopped,
    BarrierReached,
    BarrierAck,
    ReplicaReady,
    RosterFailed,
    SyncChosen,
)
REPEATED_LIMIT = 512
"""Two rounds of 128 local ranks fit twice."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnconfirmedReport:
    """A report about a round."""

    round: int
    message: Any
    made_at: float
    """Monotonic time, s."""


class Statements:
    """Reports about the newest rounds, and notices about the node, which outlive rounds."""

    def __init__(self) -> None:
        self._kept: collections.deque[UnconfirmedReport] = collections.deque(maxlen=REPEATED_LIMIT)
        self._notices: dict[str, UnconfirmedReport] = {}
        """The newest notice of each source that has not withdrawn it."""

    def note(self, message: Any, round_number: int, now: float) -> None:
        """Keep a message if its loss would matter; `now`: monotonic, s."""
        if isinstance(message, NoticeReceived):
            self._notices[message.source] = UnconfirmedReport(round_number, message, now)
        elif isinstance(message, REPEATED):
            if isinstance(message, SyncChosen):  # the newest says it all, and there may be many
                self._drop(lambda entry: isinstance(entry.message, SyncChosen))
            self._kept.append(UnconfirmedReport(round_number, message, now))

    def forget_before(self, round_number: int) -> None:
        """Drop the reports about rounds before `round_number`: the master does not need them."""
        self._drop(lambda entry: entry.round < round_number)

    def _drop(self, drops: Callable[[UnconfirmedReport], bool]) -> None:
        kept = [entry for entry in self._kept if not drops(entry)]
        self._kept = collections.deque(kept, maxlen=REPEATED_LIMIT)

    def withdraw(self, source: str) -> None:
        """Drop a source's notice: the next master need not know of it."""
        self._notices.pop(source, None)

    def renumber_rules(self, before: Sequence[FailureRule], after: Sequence[FailureRule]) -> None:
        """Give matched rules their places in the list that holds now; `before` held until now."""
        for at, entry in enumerate(tuple(self._kept)):
            message = _renumbered(entry.message, before, after)
            self._kept[at] = dataclasses.replace(entry, message=message)

    def again(self, accepted: Fence, now: float, *, ending: int = 0) -> list[SessionRequest]:
        """Return the kept reports, in order, with present age and fence.

        accepted: epoch and incarnation that the fences bear.
        now: monotonic time, s.
        ending: round of which a process has ended. Its start is not reported again: the hello
            has shown since which processes run, and the master waits for the others' reasons.
            0: none.
        """
        return [
            SessionRequest(
                fence=dataclasses.replace(accepted, round=entry.round),
                message=_aged(entry.message, now - entry.made_at),
            )
            for entry in (*self._kept, *self._notices.values())
            if entry.round != ending or not _is_start(entry.message)
        ]


def renumbered(
    matched: Iterable[int], before: Sequence[FailureRule], after: Sequence[FailureRule]
) -> tuple[int, ...]:
    """Return the places in `after` of rules that are known by their places in `before`.

    A rule that is gone is left out.
    """
    rules = (before[place] for place in matched)
    return tuple(after.index(rule) for rule in rules if rule in after)


def _renumbered(message: Any, before: Sequence[FailureRule], after: Sequence[FailureRule]) -> Any:
    if isinstance(message, WorkerExited):
        matched = renumbered(message.matched_rules, before, after)
        return dataclasses.replace(message, matched_rules=matched)
    return message


def _is_start(message: Any) -> bool:
    return isinstance(message, RoundStarted) and not message.first_step


def _aged(message: Any, seconds: float) -> Any:
    if isinstance(message, WorkerExited):
        return dataclasses.replace(message, age_seconds=message.age_seconds + seconds)
    if isinstance(message, NoticeReceived):
        left = max(0.0, message.seconds_left - seconds)
        return dataclasses.replace(message, seconds_left=left)
    return message
