"""Kills one of two nodes under a master at a named line, or has the master forget everything.

Each node is a process with a real service and one rank. The master is scripted and lives in
this process: it does what the real one does of checkpoints, and no more. A master that dies is one
that forgets all it heard, the word at which it dies too, and asks the nodes to say it again.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import pickle
import shutil
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaigns.flash_kills import Process, start
from campaigns.kill_points import Point, die_at
from campaigns.named_kills import MID_SAVE, Judge, World, listen_to, train
from checkpoints.led_nodes import REPORTS, Script
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.coordinated_commit import CoordinatedCommit
from holdfast.flash.server.protocol import listen
from holdfast.flash.server.service import ServerState as ServedNode
from holdfast.flash.server.service import Service
from holdfast_agent.checkpoint.arenas import act_on
from holdfast_wire.messages import (
    CommitAnnounced,
    CommitGrant,
    CommitResult,
    FlushToStorage,
    MemoryCheckpoints,
    ReleaseCheckpoints,
    RestorePlan,
    RestorePlanVerified,
    RestoreRequest,
    ShardsPersisted,
    Tier,
)
from holdfast_wire.tiers import TIERS, offered

_WORLDS = 3


@dataclass
class PipeCoordinator(Script):
    """Says everything into a pipe."""

    pipe: int = -1

    def send(self, message: Any, round_number: int | None = None) -> None:
        """Say a message, with the round that it is about."""
        name = REPORTS[type(message)].encode()
        os.write(self.pipe, b"lead " + name + b" " + _packed((message, round_number)) + b"\n")


def _packed(words: Any) -> bytes:
    return base64.b64encode(pickle.dumps(words))


def _serve(path: str, orders: int, point: Point | None, pipe: int) -> None:
    listener = listen(path)
    if point is not None:
        die_at(point, pipe)
    node = ServedNode(ArenaStore(led=True))
    commit = CoordinatedCommit(node, PipeCoordinator(pipe=pipe))
    service = Service(node, commit, commit.restore, listener)

    def obey() -> None:
        with os.fdopen(orders) as lines:
            for line in lines:
                message, number = pickle.loads(base64.b64decode(line))  # noqa: S301 - our parent's
                word = functools.partial(act_on, message, number, commit)
                service.post(word if message else commit.restate)

    threading.Thread(target=obey, daemon=True).start()
    service.run()


@dataclass
class Node:
    """One node, as the master has it."""

    process: Process
    orders: int
    heard: int = 0
    """How many of its words were taken in."""

    def order(self, message: Any, round_number: int = 0) -> None:
        """Have its service hear a message; None: that of a new master which welcomes it."""
        if not self.process.ended:
            os.write(self.orders, _packed((message, round_number)) + b"\n")

    def kill(self) -> None:
        """End it."""
        os.close(self.orders)
        self.process.kill()


@dataclass
class Master:
    """A master's knowledge. A new master begins with none of it."""

    epoch: int = 1
    parts: dict[tuple[Version, str], dict[int, ShardsPersisted]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    granted: dict[tuple[Version, str], tuple[int, CommitGrant]] = field(default_factory=dict)
    """What is being committed, and by which node."""
    committed: set[Version] = field(default_factory=set)
    held: dict[int, frozenset[Version]] = field(default_factory=dict)
    questions: dict[int, tuple[int, RestoreRequest]] = field(default_factory=dict)
    """With the number of the round."""
    plan: RestorePlan | None = None
    agreed: set[int] = field(default_factory=set)


class LedScene:
    """One point under a master: worlds until it is hit, and one that goes on after it."""

    def __init__(self, point: Point, folder: Path) -> None:
        """Begin with nothing."""
        self._point, self._folder = point, folder
        self._root = str(folder / "ck")
        Path(self._root).mkdir()
        self._judge = Judge(self._root)
        self._master, self._numbers = Master(), 0
        self._nodes: dict[int, Node] = {}
        self._round = 0
        self._paths: dict[int, str] = {}
        self._words: Counter[str] = Counter()
        self._ranks: list[Process] = []
        self.hit = False

    def play(self) -> list[str]:
        """Return what was wrong."""
        try:
            for number in range(1, _WORLDS + 1):
                before = self.hit
                self._world(number)
                if before:
                    break
        finally:
            for node in self._nodes.values():
                node.kill()
            shutil.rmtree(self._folder / "sockets", ignore_errors=True)
        self._judge.stored("at the end", clean=True)
        return self._judge.wrong

    def _world(self, number: int) -> None:
        self._round = number
        for index in {0, 1} - self._nodes.keys():
            self._nodes[index] = self._node(number, index)
        mid_save = "_flush." in self._point.function and number == 1
        self._ranks = [
            self._rank(number, rank, MID_SAVE if mid_save and not rank else None) for rank in (0, 1)
        ]
        ranks = self._ranks
        self._work(lambda: any(r.ended for r in ranks) or all(r.words("end") for r in ranks))
        self._work(lambda: self._is_quiet(ranks[1]))
        for rank in ranks:
            rank.kill()
        if mid_save:
            self._rescue(number)
        both = len(self._nodes) == 2
        self._judge.started(f"world {number}", ranks)
        self._judge.saved(ranks, memory=both)
        if not both:
            self._judge.stored(f"world {number}", clean=False)

    def _is_quiet(self, rank: Process) -> bool:
        """Tell so when what can still be committed is, and a rank that lives has heard of it."""
        known = {one.step for one in self._master.committed if one.lineage == self._round}
        return not self._master.granted and (rank.ended or known <= rank.numbers("durable"))

    def _rescue(self, number: int) -> None:
        """Have what dead ranks had in memory written."""
        held = self._master.held.values()
        version = max(frozenset.intersection(*held))
        key = (version, f"h{number}")
        for node in self._nodes.values():
            node.order(FlushToStorage(version=version, attempt=key[1]))
        self._work(lambda: len(self._nodes) < 2 or version in self._master.committed)
        if self._point.who == "node" and len(self._nodes) == 2:
            self._judge.wrong.append(f"step {version.step} was rescued, and nobody died")

    def _node(self, number: int, index: int) -> Node:
        path = str(self._folder / f"node{number}.{index}")
        mine, its = os.pipe()
        trap = self._point if self._point.who == "node" and not index and not self.hit else None

        def work(pipe: int) -> None:
            os.close(its)
            _serve(path, mine, trap, pipe)

        process = start(work)
        os.close(mine)
        assert listen_to([process], Path(path).exists)
        self._paths[index] = path
        return Node(process, its)

    def _rank(self, number: int, rank: int, trap: Point | None) -> Process:
        world = World(self._paths[rank], self._root, rank, number, 0, 1)
        return start(lambda pipe: train(world, trap, pipe))

    # --- the master -----------------------------------------------------------------------------

    def _work(self, until: Any) -> None:
        """Be the master until a condition holds."""

        def turn() -> bool:
            for index, node in list(self._nodes.items()):
                words = node.process.words("lead")
                for name, body in words[node.heard :]:
                    node.heard += 1
                    self._hear(index, name, pickle.loads(base64.b64decode(body)))  # noqa: S301
                if node.process.ended:
                    self._bury(index)
            return bool(until())

        everybody = [*(node.process for node in self._nodes.values()), *self._ranks]
        if not listen_to(everybody, turn):
            self._judge.wrong.append("nothing went on")

    def _bury(self, index: int) -> None:
        """A node is gone: what it was to commit, the other one does."""
        dead = self._nodes.pop(index)
        self.hit = self.hit or bool(dead.process.words("hit"))
        dead.kill()
        self._master.held.pop(index, None)
        self._master.questions.pop(index, None)
        for key, (coordinator, grant) in list(self._master.granted.items()):
            if coordinator == index:
                self._grant(key, grant.root, grant.world_size)

    def _hear(self, index: int, name: str, words: Any) -> None:
        self._words[name] += 1
        point = self._point
        dies = point.who == "master" and point.text == name and self._words[name] == point.nth
        if dies:
            self.hit = True
            self._master = Master(epoch=self._master.epoch + 1)
            for node in self._nodes.values():
                node.order(None)
            return
        getattr(self, f"_{name}")(index, *words)

    def _written(self, index: int, parts: ShardsPersisted, _: int | None) -> None:
        assert parts.version is not None
        if parts.error:
            self._tell(CommitAnnounced(version=parts.version, error=parts.error))
            return
        key = (parts.version, parts.attempt)
        known = self._master.parts[key]
        known[index] = parts
        ranks = {rank for part in known.values() for rank in part.ranks}
        if len(ranks) == parts.world_size and key not in self._master.granted:
            self._grant(key, parts.root, parts.world_size)

    def _grant(self, key: tuple[Version, str], root: str, world: int) -> None:
        if not self._nodes:
            return
        self._numbers += 1
        coordinator = min(self._nodes)
        own = f"{key[1]}e{self._master.epoch}c{self._numbers}"
        grant = CommitGrant(version=key[0], world_size=world, root=root, attempt=key[1], own=own)
        self._master.granted[key] = (coordinator, grant)
        self._nodes[coordinator].order(grant)

    def _committed(self, index: int, ended: CommitResult, _: int | None) -> None:
        assert ended.version is not None
        version, attempt = ended.version, ended.own.rpartition("e")[0]
        known = self._master.granted.get((version, attempt))
        if known is not None and known[1].own != ended.own:
            return
        self._master.granted.pop((version, attempt), None)
        if ended.error:
            self._judge.wrong.append(f"step {version.step} was not committed: {ended.error}")
        else:
            self._master.committed.add(version)
        self._tell(CommitAnnounced(version=ended.version, error=ended.error))

    def _held(self, index: int, held: MemoryCheckpoints, _: int | None) -> None:
        self._master.held[index] = frozenset(held.versions)
        if len(self._master.held) == 2:
            common = frozenset.intersection(*self._master.held.values())
            complete = max(common, default=None)
            self._tell(ReleaseCheckpoints(complete=complete))

    def _asks(self, index: int, question: RestoreRequest, number: int) -> None:
        self._master.questions[index] = (number, question)
        asked = self._master.questions.values()
        if question.told is None and {one for one, _ in asked} == {number} and len(asked) == 2:
            self._choose(number)

    def _choose(self, round_number: int) -> None:
        asked = [question for _, question in self._master.questions.values()]
        found = {
            (version, -tier)
            for tier in TIERS
            for version in set.intersection(*(set(offered(one, tier)) for one in asked))
        }
        version, place = max(found, default=(None, 0))
        self._numbers += 1
        self._plan(
            round_number, RestorePlan(plan_id=self._numbers, version=version, tier=Tier(-place))
        )

    def _plan(self, round_number: int, plan: RestorePlan) -> None:
        self._master.plan, self._master.agreed = plan, set()
        self._tell(plan, round_number)

    def _checked(self, index: int, checked: RestorePlanVerified, round_number: int) -> None:
        plan = self._master.plan
        if plan is None or checked.plan_id != plan.plan_id:
            return
        if checked.error:
            self._judge.wrong.append(f"what {plan} names was found wrong: {checked.error}")
            return
        self._master.agreed.add(index)
        if len(self._master.agreed) == 2:
            self._plan(round_number, dataclasses.replace(plan, go=True))

    def _tell(self, message: Any, round_number: int = 0) -> None:
        for node in self._nodes.values():
            node.order(message, round_number)
