"""Slow and hanging nodes as they really were, to which the verdicts of masters are compared.

Belongs here: what was planted, whom a verdict may accuse, which verdicts must come. Does not belong
here: what is done to a node (`faults`), the verdicts (`holdfast_master.policies`).

Nobody may be accused who was healthy, whatever else goes wrong. What was planted must be named in
time only where nothing else happened (`calm`): a master that is lost has to learn anew.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_master.instructions import Instruction, Record
from holdfast_master.job.health.stragglers import node_rank
from holdfast_master.job.state.job_state import DRAINING
from holdfast_master.policies.hang_response import HangKind, HangVerdict
from holdfast_master.policies.rank_activity import SELF_EVIDENT
from holdfast_master.policies.straggler.verdict import StragglerVerdict
from holdfast_wire.messages import Incident, NodeExcluded, NodeMarked
from holdfast_wire.reasons import Cause
from simulation.oracle.accounts import Hurt
from simulation.oracle.invariants import require

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.job import Job
    from simulation.local_round import Hung
    from simulation.master import Master
    from simulation.scenario import Fault
    from simulation.training import Round

NOTICEABLE = 0.1
"""Share of a step: who never needed so much more is healthy."""
CERTAIN = 0.35
"""Share of a step: who needs so much more for long enough must be named."""
NAMED_SECONDS = 18.0
"""A slow node is named after so long: four windows at its pace, and two samples."""
LEARNED_SECONDS = 14.0
"""After so long in calm a master knows the usual times of a world."""
FORGIVEN_SECONDS = 14.0
"""After so long at its usual pace a node is not called slow any more."""
HANG_SECONDS = 15.0
"""A hang is named after so long: the limit, two heartbeats, a look, the evidence."""
COMPILES_SECONDS = 80.0
"""One in which a rank compiles is excused first, and is looked at again after a minute."""
_LIMIT_SECONDS = 14.0
"""A world that steps for longer than the limit of a hang, two heartbeats and a stall has none."""
_EVIDENCE_SECONDS = 10.0
"""Evidence is at most so old when it is judged."""
_ALONE = frozenset(
    {HangKind[activity.name] for activity in SELF_EVIDENT if activity.name in HangKind.__members__}
    | {HangKind.PROCESS_GONE, HangKind.PYTHON_LOOP}
)
"""Kinds that are known in a world of one rank, too."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Scene:
    """Who was there when something was planted."""

    master: Master
    physics: Round
    ranks: int


@dataclasses.dataclass(eq=False, slots=True)
class Planted:
    """One thing that is wrong with a node, as it was planted."""

    agent: Agent
    fault: Fault
    scene: _Scene | None
    """None: what happens beside it excuses the master."""
    hung: Hung | None = None
    until: float = math.inf


class HealthTruth:
    """What was really wrong with the nodes of one run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.hangs: list[tuple[Round, Planted]] = []
        self.named: Counter[str] = Counter()
        """Verdicts that had to come and came, by kind."""
        self._judged: dict[tuple[str, str], object] = {}
        """Verdicts that were looked at last, by master and group."""
        self._worlds: dict[str, dict[int, Round]] = {}
        """Worlds that a master has watched, by its incarnation and their number."""

    # ------------------------------------------------------------------------------- what was said

    def look(self, master: Master) -> None:
        """Hold a master's verdicts against the truth."""
        health = master.core.job.health
        physics = self._physics(master)
        if physics is not None:
            self._worlds.setdefault(master.identity.incarnation, {})[physics.number] = physics
        found = health.hang_watch.hang
        if found is not None and self._new(master, "asked", found):
            self._hang_seen(master, found.reason)
        if found is not None and found.verdict is not None and self._new(master, "", found.verdict):
            self._hang_said(master, found.verdict)
        for name, group in health.groups.items():
            if group.slow and self._new(master, name, group.slow):
                for one in group.slow:
                    self._slow_said(master, one)

    def acted(self, master: Master, batch: Sequence[Instruction]) -> None:
        """Hold what a master does about nodes against the truth."""
        facts = [item.fact for item in batch if isinstance(item, Record)]
        for fact in facts:
            if isinstance(fact, NodeExcluded) and fact.reason.endswith("is slow there"):
                self._excluded(master, int(fact.node.removeprefix("k8s-")))
                self.named["EXCLUDED"] += 1
                self.job.checks.promises.disturb()  # the world changes for a good reason
                for mark in facts:
                    if isinstance(mark, NodeMarked) and mark.mark == DRAINING and mark.value:
                        self._excluded(master, mark.node_rank)
                        # It may break down before the barrier, as a node that people drain.
                        self.job.checks.accounts.hurt(mark.node_rank, Hurt.ASKED, 0.0)
            elif isinstance(fact, Incident) and fact.cause == Cause.HUNG and fact.culprit_node:
                hung = {one.agent.rank for _, one in self.hangs}
                text = f"node {fact.culprit_node} is blamed, ranks of {sorted(hung)} hung"
                require(int(fact.culprit_node) in hung, "hang_culprit", text)
                self.named["HUNG"] += fact.open
                self.job.checks.promises.disturb()

    def _excluded(self, master: Master, node: int) -> None:
        """Only a node that was slow leaves; enough of them stay."""
        physics = self._physics(master)
        place = _place(physics, node) if physics is not None else None
        if physics is not None and place is not None:
            slow = physics.was_slow(place, NOTICEABLE)
            require(slow, "slow_excluded", f"node {node} was excluded and never slow")
            self._room(master)

    def _room(self, master: Master) -> None:
        """Those that stay, and the standbys, are enough for a world."""
        context = master.core.job
        world = context.worlds.running()
        stay = world.places.keys() - context.state.draining if world is not None else set()
        ready = len(stay | context.membership.spares)
        text = f"{ready} nodes are left, {context.bounds.smallest} are needed"
        require(context.bounds.fit(ready), "exclusion_room", text)

    def _new(self, master: Master, about: str, verdict: object) -> bool:
        key = (master.identity.incarnation, about)
        before, self._judged[key] = self._judged.get(key), verdict
        return before is not verdict

    def _hang_seen(self, master: Master, reason: str) -> None:
        """No world hangs that steps, as far as a node tells that."""
        physics = self._physics(master)
        if physics is None or physics.since is None or master is not self.job.master:
            return
        steps = self.job.time.now - physics.paces[-1].since
        heard = any(member.reached for member in physics.members.values())
        text = f"the world has stepped for {steps:.0f} s: {reason}"
        require(steps < _LIMIT_SECONDS or not heard, "hang_real", text)

    def _hang_said(self, master: Master, verdict: HangVerdict) -> None:
        """Whoever is named hangs; a node that only stands still is nobody to blame."""
        physics = self._physics(master)
        if physics is None:
            return
        since = self.job.time.now - _EVIDENCE_SECONDS
        guilty: set[int] = set()
        for where, one in self.hangs:
            if where is physics and one.until >= since:
                guilty |= self._guilty(one)
        named = {one.rank for one in verdict.ranks}
        text = f"named are ranks {sorted(named)}, {sorted(guilty)} hang: {verdict.reason}"
        require(named <= guilty, "hang_blame", text)

    def _guilty(self, one: Planted) -> set[int]:
        """Return the global ranks that may be named for a hang."""
        current = one.agent.workers.current
        if one.hung is None or current is None:
            return set()
        size = current.assignment.world_size
        if one.hung.kind is HangKind.MISMATCHED_COLLECTIVE and size <= 2:  # nothing tells which
            return set(range(size))
        return {current.assignment.base_rank + one.hung.local_rank}

    def _slow_said(self, master: Master, verdict: StragglerVerdict) -> None:
        """Whoever is accused was slow in this round; a longer step has a slow node."""
        physics, node = self._physics(master), node_rank(verdict)
        if physics is None:
            return
        place = _place(physics, node) if node is not None else None
        if node is not None and place is None:
            return  # it has left
        slow = physics.was_slow(place, NOTICEABLE)
        require(slow, "slow_blame", f"nobody was so slow: {verdict.reason}")

    def _physics(self, master: Master) -> Round | None:
        """Return the processes of the world that a master judges."""
        world = master.core.job.worlds.running()
        if world is None:
            return None
        return self.job.training.live.get((world.round, world.fact.world_hash))

    # ---------------------------------------------------------------------------- what must be said

    def planted(self, agent: Agent, fault: Fault) -> Planted:
        """Something is about to be wrong with a node."""
        return Planted(agent, fault, self._scene(agent, fault))

    def hangs_now(self, one: Planted, hung: Hung) -> None:
        """A rank of the node hangs from now on."""
        one.hung, current = hung, one.agent.workers.current
        if current is not None and current.physics is not None:
            self.hangs.append((current.physics, one))

    def _scene(self, agent: Agent, fault: Fault) -> _Scene | None:
        """Return who is there, if everything else has been well for long enough."""
        current, now = agent.workers.current, self.job.time.now
        physics = current.physics if current is not None else None
        if current is None or physics is None or not self._calm(fault):
            return None
        known = physics.told and physics.paces[0].since <= now - LEARNED_SECONDS
        scene = _Scene(self.job.master, physics, current.assignment.world_size)
        return scene if known and physics.since is not None and self._goes_on(scene) else None

    def _calm(self, fault: Fault, after: float = 0.0) -> bool:
        """Return whether nothing else happens from long before a fault until after its end."""
        since, until = fault.at - LEARNED_SECONDS, fault.at + fault.span + after
        return all(
            other is fault or other.at > until or other.at + other.span < since
            for other in self.job.scenario.faults
        )

    def _goes_on(self, scene: _Scene) -> bool:
        """Return whether the same master still leads the same processes."""
        master = self.job.master
        return (
            master is scene.master
            and master.acting
            and not self.job.over
            and not scene.physics.broken
            and len(scene.physics.members) == scene.physics.size
            and self._physics(master) is scene.physics
            and all(member.reached for member in scene.physics.members.values())
        )

    def hang_ends(self, one: Planted) -> None:
        """A hang has lasted for its span: the rank and the cause were named."""
        one.until = self.job.time.now
        scene, hung = one.scene, one.hung
        if scene is None or hung is None:
            return
        compiles = hung.kind is HangKind.COMPILATION
        if one.fault.span < (COMPILES_SECONDS if compiles else HANG_SECONDS):
            return
        if self.job.scenario.acts:
            self._hang_ended(one, scene, hung)
            return
        alone = scene.ranks == 1 and hung.kind not in _ALONE
        if alone or not self._goes_on(scene) or one.hung is not _hung(one):
            return
        watch = scene.master.core.job.health.hang_watch
        pause = min(watch.learned.longest_pause, self._stood_still(scene))
        if 2 * pause > one.fault.span - _LIMIT_SECONDS:
            return  # a pause of that length has ended by itself before
        found = watch.hang
        verdict = found.verdict if found is not None else None
        guilty = set() if hung.kind is HangKind.NETWORK else self._guilty(one)
        text = f"{hung.kind.name} of {sorted(guilty)} for {one.fault.span:.0f} s: {verdict}"
        require(verdict is not None, "hang_named", text)
        if verdict is not None:
            named = {odd.rank for odd in verdict.ranks}
            require(named == guilty and verdict.kind is hung.kind, "hang_named", text)
        self.named[hung.kind.name] += 1

    def _stood_still(self, scene: _Scene) -> float:
        """Return the longest time for which a world of a master stood still and then stepped on, s.

        As it really was: more than that no master has learned with right.
        """
        worlds = self._worlds.get(scene.master.identity.incarnation, {})
        return max((found.longest_stop for found in worlds.values()), default=0.0)

    def _hang_ended(self, one: Planted, scene: _Scene, hung: Hung) -> None:
        """The master has ended the world, unless the rank may still be at work."""
        if hung.kind is HangKind.COMPILATION or one.hung is not _hung(one):
            return
        text = f"{hung.kind.name} of node {one.agent.rank} goes on for {one.fault.span:.0f} s"
        require(not self._goes_on(scene), "hang_ended", text)

    def slow_ends(self, one: Planted, share: float) -> None:
        """A node was slower by this share for the fault's span: it is accused."""
        scene, span = one.scene, one.fault.span
        if scene is None or scene.physics.size < 2 or share < CERTAIN or span < NAMED_SECONDS:
            return
        if self._goes_on(scene) and scene.physics.slow:
            accused = self._accused(scene)
            text = f"node {one.agent.rank} needed {share:.0%} more for {span:.0f} s: {accused}"
            require(one.agent.rank in accused, "slow_named", text)
            self.named["STRAGGLER"] += 1
            self._stays(one, scene)
            if self._calm(one.fault, FORGIVEN_SECONDS):
                self.job.time.after(FORGIVEN_SECONDS, self._forgiven, one)

    def _stays(self, one: Planted, scene: _Scene) -> None:
        """Under Act people are told why an accused node is still there."""
        context = scene.master.core.job
        kept, rank = context.health.kept, one.agent.rank
        told = any(rank in nodes for nodes in kept) or rank in context.state.draining
        text = f"node {one.agent.rank} stays in the world, and nobody is told why: {kept}"
        require(told or not self.job.scenario.acts, "slow_acted", text)

    def _forgiven(self, one: Planted) -> None:
        if one.scene is not None and self._goes_on(one.scene):
            text = f"node {one.agent.rank} is as fast as before, and is still accused"
            require(one.agent.rank not in self._accused(one.scene), "slow_forgiven", text)

    def _accused(self, scene: _Scene) -> list[int | None]:
        return [node_rank(one) for one in scene.master.core.job.health.slow]


def _hung(one: Planted) -> Hung | None:
    current = one.agent.workers.current
    return current.hung if current is not None else None


def _place(physics: Round, node: int) -> int | None:
    """Return the group rank of a node."""
    return next((at for at, member in physics.members.items() if member.rank == node), None)
