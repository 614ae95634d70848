"""Verdict on a hang, and the response to it: the smallest thing that helps."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence

from holdfast_master.policies.quantities import in_words, verb


class HangKind(enum.Enum):
    """The cause of a hang; of several the first one in this order names the hang."""

    PROCESS_GONE = "process gone"
    UNINTERRUPTIBLE = "D state"
    STOPPED = "stopped"
    MISMATCHED_COLLECTIVE = "mismatched collective"
    NATIVE_GIL = "native code with the GIL"
    STORAGE = "waiting for storage"
    PIPE = "waiting for a pipe"
    DATA_LOADER = "data loader"
    COMPILATION = "first step (compilation)"
    OVER = "script over"
    LOCK = "lock"
    PYTHON_LOOP = "Python loop"
    ABSENT = "absent from the collective"
    NETWORK = "network"
    UNKNOWN = "unknown"


class Remedy(enum.Enum):
    """The smallest thing that helps."""

    NOTHING = "nothing"
    RESTART_RANK = "restart the ranks"
    RESTART_AGENT = "restart the agent"
    REPLACE_NODE = "go on without the node"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Nature:
    """The consequences of a cause."""

    remedy: Remedy = Remedy.RESTART_RANK
    comes_again: bool = False
    """All ranks at once can have it from outside: after a restart they would wait again."""
    is_common: bool = False
    """Nodes can have it together, from something that they share."""


_NATURES = {
    # The agent owns the process and should have reported its end.
    HangKind.PROCESS_GONE: _Nature(remedy=Remedy.RESTART_AGENT),
    HangKind.UNINTERRUPTIBLE: _Nature(remedy=Remedy.REPLACE_NODE, is_common=True),
    # A new process of the same node would wait for the same storage.
    HangKind.STORAGE: _Nature(remedy=Remedy.REPLACE_NODE, comes_again=True, is_common=True),
    HangKind.PIPE: _Nature(comes_again=True, is_common=True),
    HangKind.DATA_LOADER: _Nature(comes_again=True, is_common=True),
    HangKind.COMPILATION: _Nature(comes_again=True),
    HangKind.NATIVE_GIL: _Nature(comes_again=True),
    # A finished script is not run again; the verdict knows one that others still wait for.
    HangKind.OVER: _Nature(remedy=Remedy.NOTHING),
}
_PLAIN = _Nature()
"""Of the other kinds."""


def remedy_of(kind: HangKind) -> Remedy:
    """The smallest thing that helps against a hang of this kind."""
    return _NATURES.get(kind, _PLAIN).remedy


def comes_again(kind: HangKind) -> bool:
    """Whether all ranks at once can have it from outside, and would after a restart."""
    return _NATURES.get(kind, _PLAIN).comes_again


_FOLLOWERS = 2.0
"""Times the wait of the ranks that went on, for those that still wait as they did."""


@dataclasses.dataclass(frozen=True, slots=True)
class OddRank:
    """A rank for which the others wait."""

    rank: int
    kind: HangKind
    reason: str
    """To follow the rank's number in a sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HangVerdict:
    """The cause of a hang."""

    kind: HangKind
    ranks: tuple[OddRank, ...] = ()
    """The odd ranks in ascending order; none where no rank is to blame."""
    reason: str
    remedy: Remedy
    silent: tuple[int, ...] = ()
    """Ranks without usable evidence."""
    may_be_work: bool = False
    """True: all odd ranks compute, or wait for what moves. It may be an evaluation or a save; only
    its duration tells."""
    moves: bool = False
    """True: all odd ranks wait for bytes, and bytes move."""
    busy: bool = False
    """True: all odd ranks keep a core busy, in whatever code."""
    waits: bool = False
    """True: a rank waits for its peers, so somebody is missing."""
    ended: tuple[int, ...] = ()
    """Ranks whose process has ended well."""
    idle_seconds: float = math.inf
    """Since the newest collective of any rank, s; infinite: none has any."""

    @property
    def may_be_ordinary(self) -> bool:
        """True: a pause of this kind that ended by itself will come again, as each epoch begins."""
        return self.may_be_work or comes_again(self.kind)

    @property
    def may_change(self) -> bool:
        """True: it is left alone for what only lasts as long as the ranks show it.

        Bytes stop, all but one rank go on, or another rank comes to where it waits for one whose
        script is over. That a rank has ended well stays so.
        """
        alone = bool(self.ranks) and self.remedy is Remedy.NOTHING
        return not self.ended and (self.moves or alone)

    def confirms(self, other: HangVerdict) -> bool:
        """Whether it names the same ranks as an earlier one, and leads to the same.

        Where it does not, ranks have gone on since, or storage was slow at one of the two looks.
        """
        mine, others = ([one.rank for one in found.ranks] for found in (self, other))
        return (mine, self.moves, self.remedy) == (others, other.moves, other.remedy)


def is_shared(verdict: HangVerdict, nodes: Mapping[int, int]) -> bool:
    """Whether half of the nodes or more, but not a single one, wait for what is outside.

    They share it, as a file system. A restart would wait for it again; it ends by itself, if at
    all. nodes: node rank of each global rank of the world.
    """
    waiting = {nodes[one.rank] for one in verdict.ranks if one.rank in nodes}
    outside = all(_NATURES.get(one.kind, _PLAIN).is_common for one in verdict.ranks)
    return outside and len(waiting) > 1 and 2 * len(waiting) >= len(set(nodes.values()))


def following_seconds(now: HangVerdict, before: HangVerdict, seconds: float) -> float:
    """How long odd ranks may take to follow those that went on since an earlier look.

    Both count from the last progress, s; 0: nobody went on from what they do.
    """
    left, were = ({one.rank for one in found.ranks} for found in (now, before))
    kinds, known = ({one.kind for one in found.ranks} for found in (now, before))
    return _FOLLOWERS * seconds if left and left < were and kinds <= known else 0.0


class HangAction(enum.Enum):
    """The response to a hang."""

    NOTHING = "nothing"
    WAIT = "nothing yet"
    """A response costs more than the time that has been waited."""
    RESTART_ROUND = "restart the round"
    """On the same nodes."""
    REPLACE_AGENTS = "replace the agents"
    """The round begins anew, and these nodes get new pods on any host."""
    LEAVE_NODES = "go on without the nodes"
    """Their processes may not end even by SIGKILL, and their hosts are avoided."""


@dataclasses.dataclass(frozen=True, slots=True)
class HangResponse:
    """A response with its reason."""

    action: HangAction
    nodes: tuple[int, ...]
    """Node ranks that leave, in ascending order."""
    reason: str


_REMEMBERED = 3
"""Newest answers to a kind of hang whose cost counts: one that comes once a day is no habit."""
_LEAVE = {
    Remedy.REPLACE_NODE: HangAction.LEAVE_NODES,
    Remedy.RESTART_AGENT: HangAction.REPLACE_AGENTS,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredHang:
    """A hang that ended its world, in whatever world of the job."""

    kind: HangKind
    ranks: tuple[int, ...]
    """The odd ones."""
    hosts: tuple[str, ...]
    """Of their nodes; a node's successor has its number, and perhaps another host."""
    began: float
    """Patient clock at the last progress before it, s."""
    round: int
    reached: int
    """Newest step of that world; 0: steps are not known."""
    cost_seconds: float = 0.0
    """From the last progress before it to the first one that was new after it, s; 0: none was."""

    def until(self, next_began: float) -> AnsweredHang:
        """With its cost, where none is known: up to the last progress before the next hang.

        To count until now would have the wait grow as fast as it is waited.
        """
        cost = self.cost_seconds or max(0.0, next_began - self.began)
        return dataclasses.replace(self, cost_seconds=cost)


def decide(
    verdict: HangVerdict,
    nodes: Mapping[int, int],
    *,
    tried: bool,
    hosts: Mapping[int, str] = {},
    past: Sequence[AnsweredHang] = (),
    waited_seconds: float = math.inf,
    excused_seconds: float = 0.0,
) -> HangResponse:
    """The response to a hang.

    Args:
        verdict: Its cause.
        nodes: Node rank of each global rank of the world.
        tried: The world was started for a hang without an odd rank, and got no further since.
        hosts: Host of each node rank, as far as it is known.
        past: What was answered before. As long as those of the same kind have cost, it is waited
            before another one is: so a response that does not help costs no more than waiting did.
        waited_seconds: Since the hang passed its limit, s.
        excused_seconds: Until ranks may no more be at work that nobody has told, s.
    """
    over = any(one.kind is HangKind.OVER for one in verdict.ranks)
    if verdict.ended or (over and verdict.remedy is Remedy.NOTHING):
        text = "a part of its ranks has ended well, and a finished script is not run again"
        return HangResponse(HangAction.NOTHING, (), text)
    if verdict.moves:
        text = "what the ranks wait for makes progress, and would begin anew"
        return HangResponse(HangAction.NOTHING, (), text)
    if not verdict.ranks:
        return _nobody_accused(tried=tried)
    if verdict.remedy is Remedy.NOTHING:
        return HangResponse(HangAction.NOTHING, (), "a restart would meet the same on all nodes")
    same = [one for one in past if one.kind is verdict.kind][-_REMEMBERED:]
    patience = sum(one.cost_seconds for one in same)
    if waited_seconds < patience:
        text = f"the last answers to this have cost {in_words(patience)}: as long is waited"
        return HangResponse(HangAction.WAIT, (), text)
    action = _LEAVE.get(verdict.remedy)
    found = HangResponse(HangAction.RESTART_ROUND, (), "its ranks are started anew")
    if action is not None:
        found = _leave(action, verdict, nodes, hosts, same)
    if found.action is not HangAction.NOTHING and excused_seconds > 0 and is_shared(verdict, nodes):
        return HangResponse(HangAction.WAIT, (), "half of the nodes wait for what they may share")
    return found


def _leave(
    action: HangAction,
    verdict: HangVerdict,
    nodes: Mapping[int, int],
    hosts: Mapping[int, str],
    same: Sequence[AnsweredHang],
) -> HangResponse:
    """Have the nodes leave, unless all have it, or it has followed the rank from another node."""
    bad = {nodes[one.rank] for one in verdict.ranks if remedy_of(one.kind) is verdict.remedy}
    leaving = tuple(sorted(bad))
    if len(leaving) > 1 and len(leaving) == len(set(nodes.values())):
        return HangResponse(HangAction.NOTHING, (), "all nodes have it, so none is to blame")
    ranks = tuple(one.rank for one in verdict.ranks)
    here = {hosts[node] for node in bad if node in hosts}
    if here and any(
        one.ranks == ranks and one.hosts and here.isdisjoint(one.hosts) for one in same
    ):
        text = f"{_ranks(ranks)} met the same on another node, so the node is not to blame"
        return HangResponse(HangAction.NOTHING, (), text)
    names = ", ".join(map(str, leaving))
    text = f"{verb(len(leaving), 'node', 'nodes')} {names} {verb(len(leaving), 'leaves', 'leave')}"
    return HangResponse(action, leaving, text)


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"{verb(len(ranks), 'rank', 'ranks')} {', '.join(map(str, ranks))}"


def _nobody_accused(*, tried: bool) -> HangResponse:
    if tried:
        text = "no rank is to blame, and a restart has not helped"
        return HangResponse(HangAction.NOTHING, (), text)
    text = "no rank is to blame: all ranks are started anew, once"
    return HangResponse(HangAction.RESTART_ROUND, (), text)
