"""Verdict on stragglers: the rank, node or link that is slower than usual."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence

from holdfast_master.policies.quantities import counted
from holdfast_master.policies.straggler.slices import SLICE_RANKS, Slices
from holdfast_master.policies.straggler.usual import middle
from holdfast_master.policies.straggler.votes import Vote, VoteRecord, VoteTally
from holdfast_master.policies.straggler.window import Window
from holdfast_wire.messages import StragglerPolicy

WARM_UP_WINDOWS = 1
"""First windows of a world that are not judged: compilation, first allocation."""
_MOST = 2 / 3
"""Share of an excess that is called most of it."""
_EVERYWHERE = 0.6
"""Share of an excess that lies in the parts of a step as usual time does, where all is slow."""
_ACCUSATIONS = 100
"""Accusations of one slice."""


class Subject(enum.Enum):
    """The part that a verdict accuses."""

    RANK = "rank"
    NODE = "node"
    LINK = "link"
    """The node's way to the others, not its devices."""
    JOB = "job"
    """Its steps are longer and no rank stands out: nobody is accused."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StragglerVerdict:
    """One accusation, or the finding that the steps are longer and nobody stands out."""

    subject: Subject
    node: str
    """Empty for a job."""
    ranks: tuple[int, ...]
    since_step: int
    percent: float
    """Slowdown in percent of a step."""
    node_seconds_per_hour: float
    """The job's loss by it, node-seconds in an hour."""
    considered: tuple[str, ...]
    """Other causes, and what the data say of each."""
    reason: str
    replica: int = 0
    """Whose ranks these are: each replica counts its own; 0: the world is one."""
    own_work: str = ""
    """Why the rank may have work of its own, which goes with it to any node; empty: nothing says
    so."""


def judge_slices(
    record: VoteRecord,
    window: Window,
    policy: StragglerPolicy,
    references: Mapping[str, float] | None = None,
) -> Slices[tuple[VoteRecord, tuple[StragglerVerdict, ...]]]:
    """Count one window's votes; return the new record, and the verdicts that now hold.

    In slices of some ranks. references: seconds of one fixed task on each node, from preflight,
    where known.
    """
    ranks = {rank: one for rank, one in sorted(window.ranks.items()) if not one.marked}
    if record.windows < WARM_UP_WINDOWS or len(ranks) < 2:
        return dataclasses.replace(record, windows=record.windows + 1), ()
    tally = VoteTally(record, window, policy, ranks, references or {})
    yield from tally.count()
    after = yield from tally.recorded()
    verdicts = yield from _Findings(after, tally, policy).verdicts()
    return after, verdicts


class _Findings:
    """The verdicts that the votes of a record carry."""

    def __init__(self, record: VoteRecord, tally: VoteTally, policy: StragglerPolicy) -> None:
        self.record, self.tally = record, tally
        self.out_of, self.enough = max(1, policy.votes_out_of), max(1, policy.votes)
        self.percent = policy.slowdown_percent
        self.nodes = len({one.node for one in tally.window.ranks.values()})

    def verdicts(self) -> Slices[tuple[StragglerVerdict, ...]]:
        """The accusations, in slices; the finding about the whole job if there is none."""
        slow: dict[str, list[int]] = {}
        there = collections.Counter[str]()
        for count, (rank, one) in enumerate(self.tally.ranks.items(), 1):
            there[one.node] += 1
            if len(self._against(rank)) >= self.enough:
                slow.setdefault(one.node, []).append(rank)
            if count % SLICE_RANKS == 0:
                yield
        found: list[StragglerVerdict] = []
        for node, mine in sorted(slow.items()):
            parts = [mine] if len(mine) == there[node] else [[rank] for rank in mine]
            found += [self._accusation(part, there[node]) for part in parts]
            if len(found) % _ACCUSATIONS < len(parts):
                yield
        return tuple(found) or self._of_all()

    def _against(self, rank: int) -> list[Vote]:
        return [vote for vote in self.record.votes[rank][-self.out_of :] if vote.slow]

    def _accusation(self, ranks: Sequence[int], there: int) -> StragglerVerdict:
        tally, votes = self.tally, self._against(ranks[0])
        middles = [_middle_vote(self._against(rank)) for rank in ranks]
        excess = middle(vote.excess for vote in middles)
        percent = middle(vote.percent for vote in middles)
        link, transfer = _link(tally, ranks, excess)
        node = tally.ranks[ranks[0]].node
        subject = Subject.LINK if link else Subject.NODE
        subject = subject if len(ranks) == there else Subject.RANK
        since = min(change_point(_series(self.record.votes[rank])) for rank in ranks)
        names = {Subject.RANK: f"rank {ranks[0]} on {node}", Subject.LINK: f"the link of {node}"}
        return StragglerVerdict(
            subject=subject,
            node=node,
            ranks=tuple(ranks),
            since_step=since,
            percent=percent,
            node_seconds_per_hour=self._lost(percent),
            considered=(transfer, *_considered(tally, ranks, there)),
            own_work=_own_work(tally, ranks),
            reason=(
                f"{names.get(subject, node)} needs {excess:.3g} s more than usual in each step "
                f"since step {since}, {percent:.0f} % of a step: "
                f"{len(votes)} of the last {counted(self.out_of, 'window')}"
            ),
        )

    def _of_all(self) -> tuple[StragglerVerdict, ...]:
        """The finding that the job is slower than it was, and no rank stands out."""
        newest = [percent for _, percent in self.record.slower[-self.out_of :]]
        slow = [percent for percent in newest if percent >= self.percent]
        if len(slow) < self.enough:
            return ()
        percent, since = middle(slow), change_point(self.record.slower)
        verdict = StragglerVerdict(
            subject=Subject.JOB,
            node="",
            ranks=(),
            since_step=since,
            percent=percent,
            node_seconds_per_hour=self._lost(percent),
            considered=(
                "network, storage, power, longer samples: cannot tell, no rank stands out",
            ),
            reason=(
                f"a step takes {percent:.0f} % longer than before step {since}, "
                "and no rank is slower beside the others than it was"
            ),
        )
        return (verdict,)

    def _lost(self, percent: float) -> float:
        return self.nodes * 3600 * percent / (100 + percent)


def _middle_vote(votes: Sequence[Vote]) -> Vote:
    return sorted(votes, key=lambda vote: vote.excess)[(len(votes) - 1) // 2]


def _series(votes: Sequence[Vote]) -> list[tuple[int, float]]:
    return [(vote.first_step, vote.percent) for vote in votes]


def change_point(series: Sequence[tuple[int, float]]) -> int:
    """The first step of the part that differs most from the part before it.

    The split with the greatest sum of squares between both parts; the series' begin where no later
    part is higher.
    """
    best, at = 0.0, series[0][0]
    total, before = sum(value for _, value in series), 0.0
    for i in range(1, len(series)):
        before += series[i - 1][1]
        rest = len(series) - i
        rise = (total - before) / rest - before / i
        gain = rise * rise * i * rest if rise > 0 else 0.0
        if gain > best:
            best, at = gain, series[i][0]
    return at


# --------------------------------------------------------------------------------- other causes


def _link(tally: VoteTally, ranks: Sequence[int], excess: float) -> tuple[bool, str]:
    """Whether most of the excess is communication."""
    usual, known = tally.usual_transfer, [tally.ranks[rank].transfer for rank in ranks]
    mine = [one for one in known if one is not None]
    if usual is None or len(mine) < len(known) or excess <= 0:
        return False, "network: cannot tell, no time of communication is known"
    share = min((one - usual) / excess for one in mine)
    text = f"network: {100 * min(max(share, 0.0), 1.0):.0f} % of the excess is communication"
    return share >= _MOST, text


def _considered(tally: VoteTally, ranks: Sequence[int], there: int) -> Iterable[str]:
    yield _place(tally, ranks)
    if tally.by_work:
        yield "length of samples: no, the rank is slow for its work, too"
    else:
        yield "length of samples: cannot tell, the ranks' work is not known"
    yield "garbage collection, checkpoint: unlikely, a quarter of a window's steps may be so long"
    yield "heat that all share: no, the change that all ranks share is taken away"
    ratio = tally.ratios.get(tally.ranks[ranks[0]].node)
    if ratio is not None:
        slow = tally.reference_is_slow(tally.ranks[ranks[0]].node)
        yield f"preflight: the node {'was slow, too' if slow else 'was not slow'}"
    if there == 1:
        yield "rank or node: cannot tell, the node has one rank"


def _own_work(tally: VoteTally, ranks: Sequence[int]) -> str:
    """Whether the excess may be the work of the first rank, which logs, gathers and saves.

    A slow processor shows in all parts of a step, in the node's other ranks, or in preflight.
    """
    node = tally.ranks[ranks[0]].node
    if list(ranks) != [0] or tally.reference_is_slow(node) or _spread(tally, ranks) >= _EVERYWHERE:
        return ""
    return "rank 0 alone is slow, and may log, gather or save more than before"


def _spread(tally: VoteTally, ranks: Sequence[int]) -> float:
    """The share of the excess that lies in the parts of a step as usual time does.

    0 where one part is nearly all of a step: nothing can be told then.
    """
    usual, above = _by_place(tally, ranks)
    whole, excess = sum(usual), sum(above)
    if len(usual) < 2 or max(usual) >= _MOST * whole or excess <= 0:
        return 0.0
    return sum(min(a / excess, b / whole) for a, b in zip(above, usual, strict=True))


def _by_place(
    tally: VoteTally, ranks: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The usual time of each segment, and what the ranks have above it, s."""
    usual = tally.usual_places
    mine = [middle(one) for one in zip(*(tally.ranks[rank].places for rank in ranks), strict=True)]
    return usual, tuple(max(one - other, 0.0) for one, other in zip(mine, usual, strict=False))


def _place(tally: VoteTally, ranks: Sequence[int]) -> str:
    """Whether the excess lies in one place of the step, as that of a data loader does."""
    usual, above = _by_place(tally, ranks)
    if len(usual) < 2:
        return "data loader: cannot tell, fewer than two segments of a step are known"
    most = max(range(len(above)), key=above.__getitem__)
    share = above[most] / (sum(above) or 1.0)
    said = f"{100 * share:.0f} % of the excess lies in segment {most + 1} of {len(above)}"
    if share >= _MOST and usual[most] < _MOST * sum(usual):
        return f"data loader or other work of the host: likely, {said}"
    return f"data loader: unlikely, {said}"
