"""Choice of the pairs of a round.

Belongs here: who measures the network with whom. Does not belong here: whether there is another
round (`rounds`), the meaning of a figure (`pair_verdicts`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from holdfast_master.policies.preflight.figures import Pair

Met = Mapping[str, AbstractSet[str]]
"""Nodes that are no partners any more: those of earlier rounds, and those of the same machine."""


def neighbours(nodes: Sequence[str], spare: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return pairs of neighbours in the given order; who is left over gets one of the spare."""
    left, pairs, odd = dict.fromkeys(nodes), list[Pair](), list[str]()
    while left:
        node = next(iter(left))
        del left[node]
        partner = next((one for one in left if one not in met.get(node, ())), None)
        if partner is None:
            odd.append(node)
        else:
            del left[partner]
            pairs.append(Pair(node, partner))
    return (*pairs, *match(odd, spare, met))


def extremes(scores: Mapping[str, float], spare: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return pairs of the fastest with the slowest, none for the second time.

    Args:
        scores: Score of each tested node, in a fixed order; more is better. A node without a
            partner so far has minus infinity.
        spare: Trusted nodes. They are partners where the tested nodes are too few or odd.
        met: Partners of earlier rounds.
    """
    slowest_first = sorted(scores, key=lambda node: scores[node])
    half = len(slowest_first) // 2
    if len(slowest_first) <= 2 and spare:
        return match(slowest_first, spare, met)
    needy, fast = slowest_first[:half], slowest_first[:half:-1]
    middle = slowest_first[half]
    if len(slowest_first) % 2 == 0:
        fast.append(middle)
        return match(needy, fast, met)
    # The odd one in the middle goes without, unless a spare can take it.
    return (*match(needy, fast, met), *match([middle], spare, met))


def match(needy: Sequence[str], partners: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return a pair for each needy node, in order, with the first partner that it has not met.

    Where all that are left have been met, it changes partners with a pair before.
    """
    left = dict.fromkeys(partners)
    for node in needy:
        left.pop(node, None)
    made = dict[str, str]()
    for node in needy:
        free = next((one for one in left if one not in met.get(node, ())), None)
        if free is not None:
            del left[free]
            made[node] = free
        elif (swap := _swap(node, made, left, met)) is not None:
            earlier, other = swap
            del left[other]
            made[node], made[earlier] = made[earlier], other
    return tuple(Pair(partner, node) for node, partner in made.items())


def _swap(
    node: str, made: Mapping[str, str], left: Collection[str], met: Met
) -> tuple[str, str] | None:
    for earlier, partner in reversed(list(made.items())):
        if partner in met.get(node, ()):
            continue
        for other in left:
            if other not in met.get(earlier, ()):
                return earlier, other
    return None


def unseen(nodes: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return pairs of nodes that have not met, each node once, in the given order."""
    taken, pairs = set[str](), list[Pair]()
    for one, other in itertools.combinations(nodes, 2):
        if not {one, other} & taken and other not in met.get(one, ()):
            pairs.append(Pair(one, other))
            taken |= {one, other}
    return tuple(pairs)
