"""Meetings of replicas: one step for all, and each micro-batch of it in one sum."""

from __future__ import annotations

import dataclasses
import random

import pytest

from holdfast.replicas.errors import MeetingError
from holdfast.replicas.meeting import Agreement, Standing, agree, deal, lineage_of, unlike

STEPS = 12


def old(replica: int, step: int, *held: int, keeps: bool = True, **given: int) -> Standing:
    """Return the standing of a replica that trains."""
    return Standing(
        replica=replica, is_new=False, step=step, keeps=keeps, held=frozenset(held), **given
    )


def new(replica: int, step: int = 0) -> Standing:
    """Return the standing of one that has just begun."""
    return Standing(replica=replica, is_new=True, step=step)


def test_a_step_is_dealt_out_in_turns() -> None:
    """Seven micro-batches on three replicas: 3, 2 and 2."""
    assert deal(7, [2, 5, 6]) == {2: (0, 3, 6), 5: (1, 4), 6: (2, 5)}


def test_the_share_of_a_lost_replica_is_dealt_anew_in_the_same_step() -> None:
    """Survivors keep their sums; the four of the lost one go to those who have least."""
    plan = agree([old(0, 9, 0, 3, 6, 9), old(1, 9, 1, 4, 7)], 12)
    assert (plan.step, plan.behind, plan.heals, plan.gradient_from) == (9, (), (), None)
    assert plan.dealt == {0: (5, 10), 1: (2, 8, 11)}


def test_who_lacks_the_result_of_a_step_is_given_it() -> None:
    """One had it whole, one was torn: the torn one's sum is of the past, and both go on."""
    plan = agree([old(0, 9, 0, 1, keeps=False), old(1, 10)], 4)
    assert (plan.step, plan.gradient_from, plan.behind) == (10, 1, (0,))
    assert plan.dealt == {0: (0, 2), 1: (1, 3)}


def test_a_joiner_is_healed_and_gives_nothing_to_its_first_step() -> None:
    """Two joiners have two donors."""
    plan = agree([old(4, 7), new(8, step=3), old(5, 7), new(9)], 4)
    assert plan.heals == ((8, 4), (9, 5))
    assert plan.dealt == {4: (0, 2), 5: (1, 3), 8: (), 9: ()}
    assert not plan.heal_first


def test_at_the_begin_all_take_the_state_of_the_one_that_is_furthest() -> None:
    """As where one has restored a newer checkpoint than the others."""
    plan = agree([new(1), new(2, step=40), new(3, step=40)], 3)
    assert (plan.step, plan.heals, plan.heal_first) == (40, ((1, 2), (3, 2)), True)
    assert plan.dealt == {1: (0,), 2: (1,), 3: (2,)}


def test_one_that_was_out_for_many_steps_takes_the_state_of_the_others() -> None:
    """It was frozen: what it holds is of a step long gone."""
    plan = agree([old(0, 20), old(1, 12, 1, 3)], 4)
    assert plan.heals == ((1, 0),)
    assert plan.dealt == {0: (0, 1, 2, 3), 1: ()}


def test_of_two_sums_with_one_micro_batch_the_later_is_given_up() -> None:
    """One that was out comes back in the step in which others have its share computed."""
    plan = agree([old(0, 5, 0, 2), old(1, 5, 1, 3), old(2, 5, 2)], 4)
    assert plan.drops == {2}
    assert plan.dealt == {0: (), 1: (), 2: ()}


def test_of_two_groups_that_went_on_apart_one_takes_the_other_s_state() -> None:
    """A stale roster: all are at step 8, and their weights are not the same."""
    apart = [old(n, 8, lineage=lineage_of(7, epoch)) for n, epoch in [(0, 3), (1, 4), (2, 4)]]
    plan = agree(apart, 4)
    assert plan.heals == ((0, 1),)
    assert plan.dealt == {0: (), 1: (0, 2), 2: (1, 3)}


def test_one_behind_that_was_in_another_group_is_given_no_gradient() -> None:
    """Its weights are not those that the gradient was made with."""
    ahead = old(0, 8, lineage=11, lineage_before=7)
    assert agree([ahead, old(1, 7, lineage=7)], 2).behind == (1,)
    assert agree([ahead, old(1, 7, lineage=6)], 2).heals == ((1, 0),)


def test_a_state_that_was_not_given_whole_is_nobody_s_source() -> None:
    """Its donor was lost: parts are of one replica and parts of another."""
    assert agree([new(1, step=-1), new(2, step=0)], 2).heals == ((1, 2),)
    with pytest.raises(MeetingError, match="no replica has a whole state"):
        agree([new(1, step=-1), new(2, step=-1)], 2)


def test_what_cannot_be_is_refused_by_name() -> None:
    """Nobody, one twice, and a micro-batch that no step has."""
    with pytest.raises(MeetingError, match="each once"):
        agree([], 4)
    with pytest.raises(MeetingError, match="each once"):
        agree([new(1), new(1)], 4)
    with pytest.raises(MeetingError, match="holds micro-batches \\[4\\]"):
        agree([old(1, 3, 4)], 4)


@dataclasses.dataclass
class Member:
    """A replica of the model: the weights are the list of the steps' sums that it has applied."""

    standing: Standing
    weights: list[tuple[int, ...]]
    gradient: tuple[int, ...] = ()


class World:
    """Replicas that are lost, join and are torn at drawn instants; the model of the rules."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randrange(1, 9)
        self.members = [Member(new(n), []) for n in range(self.rng.randrange(1, 6))]
        self.next, self.epoch = len(self.members), 0

    def run(self) -> list[tuple[int, ...]]:
        """Train to the end; return the weights, which all members have."""
        while min(one.standing.step for one in self.members) < STEPS:
            self.change()
            plan = agree([one.standing for one in self.members], self.count)
            self.epoch += 1
            if self.rng.random() < 0.2:
                continue  # another change comes before the plan is carried out
            self.carry_out(plan)
            if not self.reduce():
                continue
            while self.rng.random() < 0.5 and self.ordinary():
                pass
        assert len({tuple(one.weights[:STEPS]) for one in self.members}) == 1
        return self.members[0].weights

    def change(self) -> None:
        """Lose some of the members, or let some join."""
        if len(self.members) > 1 and self.rng.random() < 0.5:
            self.members.remove(self.rng.choice(self.members))
        if len(self.members) < 5 and self.rng.random() < 0.4:
            self.members.append(Member(new(self.next), []))
            self.next += 1

    def carry_out(self, plan: Agreement) -> None:
        """Give gradients and states, compute what is dealt."""
        by_number = {one.standing.replica: one for one in self.members}
        for number in plan.behind:
            assert plan.gradient_from is not None
            self.apply(by_number[number], by_number[plan.gradient_from].gradient)
            giver = by_number[plan.gradient_from].standing
            self.set(by_number[number], lineage=giver.lineage)
        for joiner, donor in plan.heals:
            healed, source = by_number[joiner], by_number[donor]
            healed.weights = list(source.weights)
            healed.standing = dataclasses.replace(
                source.standing, replica=joiner, is_new=False, keeps=False, held=frozenset()
            )
        for one in self.members:
            number = one.standing.replica
            held = frozenset() if number in plan.drops else one.standing.held
            assert not held & set(plan.dealt[number])
            self.set(one, is_new=False, held=held | set(plan.dealt[number]))
            assert one.standing.step == plan.step

    def ordinary(self) -> bool:
        """Make a step to which no meeting belongs; False: it was torn."""
        names = [one.standing.replica for one in self.members]
        dealt = deal(self.count, names)
        for one in self.members:
            self.set(one, held=frozenset(dealt[one.standing.replica]))
        return self.reduce()

    def reduce(self) -> bool:
        """Reduce; where a member is lost in it, only some have the result."""
        total = tuple(sorted(number for one in self.members for number in one.standing.held))
        assert total == tuple(range(self.count)), total
        torn = self.rng.random() < 0.4
        whole = [one for one in self.members if not torn or self.rng.random() < 0.5]
        if torn and self.rng.random() < 0.5:
            for one in self.members:
                self.set(one, keeps=False)  # a bucket was whole: nobody lacks the step before
        for one in whole:
            self.apply(one, total)
            self.set(one, lineage=lineage_of(one.standing.lineage_before, self.epoch))
        return not torn

    def apply(self, one: Member, total: tuple[int, ...]) -> None:
        """Take a step."""
        one.weights.append(total)
        one.gradient = total
        before = one.standing.lineage
        self.set(one, step=one.standing.step + 1, keeps=True, held=frozenset())
        self.set(one, lineage_before=before)

    def set(self, one: Member, **given: object) -> None:
        """Change a standing."""
        one.standing = dataclasses.replace(one.standing, **given)  # type: ignore[arg-type]


def test_whatever_happens_each_step_has_each_micro_batch_once() -> None:
    """300 drawn courses of losses, joins and torn reductions; all members end alike."""
    first = random.randrange(2**32)
    for seed in range(first, first + 300):
        world = World(seed)
        weights = world.run()
        assert len(weights) >= STEPS, f"seed {seed}"
        assert set(weights) == {tuple(range(world.count))}, f"seed {seed}"


def test_a_replica_of_another_form_is_named_with_the_field() -> None:
    """Those who train already are right, whatever their numbers; else the first is."""
    fields = ("micro_batches", "model")
    forms = {0: (True, (8.0, 1.0)), 1: (False, (8.0, 2.0)), 2: (False, (8.0, 2.0))}
    assert unlike(forms, fields) == {0: "model"}
    assert unlike({0: (True, (8.0, 1.0)), 1: (True, (4.0, 1.0))}, fields) == {1: "micro_batches"}
    assert unlike({0: (True, (8.0, 1.0)), 1: (True, (8.0, 1.0))}, fields) == {}
