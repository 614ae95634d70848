"""Kills one of two nodes under a master at a named line, or has the master forget everything.

Each node is a process with a real `LedService` and one rank. The master is scripted and lives in
this process: it does what the real one does of checkpoints, and no more. A master that dies is one
that forgets all it heard, the word at which it dies too, and asks the nodes to say it again.
"""

from __future__ import annotations

import base64
import functools
import os
import pickle
import shutil
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.flash.decide.slots import Version
from holdfast.flash.keeper import Keeper
from holdfast.flash.lead import Answer, Question, Written
from holdfast.flash.led import LedService
from holdfast.flash.persisting import Grant
from holdfast.flash.sockets import listen
from kill_points import Point, die_at
from lone_peers import Nobody
from named_kills import MID_SAVE, Judge, Process, World, listen_to, start, train

_WORLDS = 3


class PipeLead:
    """Says everything into a pipe."""

    def __init__(self, pipe: int) -> None:
        """Take the pipe."""
        self._pipe = pipe
        self.job, self.peers = "job", Nobody()

    def world(self, round_number: int) -> str:
        """Names the world of a round."""
        return f"w{round_number}"

    def attempt(self, round_number: int) -> str:
        """All of a round's parts lie in this attempt's directory."""
        return f"w{round_number}"

    def __getattr__(self, name: str) -> Any:
        if name not in ("held", "written", "committed", "asks", "checked"):
            raise AttributeError(name)
        return lambda *words, **_: os.write(
            self._pipe, b"lead " + name.encode() + b" " + _packed(words) + b"\n"
        )


def _packed(words: Any) -> bytes:
    return base64.b64encode(pickle.dumps(words))


def _serve(path: str, orders: int, point: Point | None, pipe: int) -> None:
    listener = listen(path)
    if point is not None:
        die_at(point, pipe)
    service = LedService(Keeper(led=True), listener, PipeLead(pipe))

    def obey() -> None:
        with os.fdopen(orders) as lines:
            for line in lines:
                name, words = pickle.loads(base64.b64decode(line))  # noqa: S301 - from our parent
                service.post(functools.partial(getattr(service, name), *words))

    threading.Thread(target=obey, daemon=True).start()
    service.run()


@dataclass
class Node:
    """One node, as the master has it."""

    process: Process
    orders: int
    heard: int = 0
    """How many of its words were taken in."""

    def order(self, name: str, *words: Any) -> None:
        """Have its service do something."""
        if not self.process.ended:
            os.write(self.orders, _packed((name, words)) + b"\n")

    def kill(self) -> None:
        """End it."""
        os.close(self.orders)
        self.process.kill()


@dataclass
class Master:
    """What a master knows; a new one begins with nothing of it."""

    epoch: int = 1
    parts: dict[tuple[Version, str], dict[int, Written]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    granted: dict[tuple[Version, str], tuple[int, Grant]] = field(default_factory=dict)
    """What is being committed, and by which node."""
    committed: set[Version] = field(default_factory=set)
    held: dict[int, frozenset[Version]] = field(default_factory=dict)
    questions: dict[int, Question] = field(default_factory=dict)
    answer: Answer | None = None
    agreed: set[int] = field(default_factory=set)
    damaged: set[tuple[Version, bool]] = field(default_factory=set)


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
        mid_save = self._point.file == "rescuing" and number == 1
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
            node.order("save_held", version, key[1])
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
                self._grant(key, grant.root, grant.world)

    def _hear(self, index: int, name: str, words: Any) -> None:
        self._words[name] += 1
        point = self._point
        dies = point.who == "master" and point.text == name and self._words[name] == point.nth
        if dies:
            self.hit = True
            self._master = Master(epoch=self._master.epoch + 1)
            for node in self._nodes.values():
                node.order("restate")
            return
        getattr(self, f"_{name}")(index, *words)

    def _written(self, index: int, parts: Written) -> None:
        if parts.error:
            self._tell("announce", parts.version, parts.error)
            return
        key = (parts.version, parts.attempt)
        known = self._master.parts[key]
        known[index] = parts
        ranks = {rank for part in known.values() for rank in part.ranks}
        if len(ranks) == parts.world and key not in self._master.granted:
            self._grant(key, parts.root, parts.world)

    def _grant(self, key: tuple[Version, str], root: str, world: int) -> None:
        if not self._nodes:
            return
        self._numbers += 1
        coordinator = min(self._nodes)
        own = f"{key[1]}e{self._master.epoch}c{self._numbers}"
        grant = Grant(version=key[0], world=world, root=root, attempt=key[1], own=own)
        self._master.granted[key] = (coordinator, grant)
        self._nodes[coordinator].order("grant", grant)

    def _committed(self, index: int, grant: Grant, error: str) -> None:
        key = (grant.version, grant.attempt)
        if self._master.granted.get(key, (index, grant))[1] != grant:
            return
        self._master.granted.pop(key, None)
        if error:
            self._judge.wrong.append(f"step {grant.version.step} was not committed: {error}")
        else:
            self._master.committed.add(grant.version)
        self._tell("announce", grant.version, error)

    def _held(self, index: int, _: int, versions: frozenset[Version]) -> None:
        self._master.held[index] = versions
        if len(self._master.held) == 2:
            common = frozenset.intersection(*self._master.held.values())
            self._tell("release", max(common, default=None), frozenset())

    def _asks(self, index: int, question: Question) -> None:
        self._master.questions[index] = question
        asked = self._master.questions.values()
        if question.told is None and len({one.round for one in asked}) == 1 and len(asked) == 2:
            self._choose(question.round)

    def _choose(self, round_number: int) -> None:
        asked = self._master.questions.values()
        memory = set.intersection(*(set(one.memory) for one in asked))
        stored = set.intersection(*(set(one.stored) for one in asked))
        found = {(version, True) for version in memory} | {(one, False) for one in stored}
        best = max(found - self._master.damaged, default=(None, False))
        self._numbers += 1
        self._answer(round_number, Answer(
            number=self._numbers, version=best[0], memory=best[1], go=False,
        ))  # fmt: skip

    def _answer(self, round_number: int, answer: Answer) -> None:
        self._master.answer, self._master.agreed = answer, set()
        self._tell("start_from", round_number, answer)

    def _checked(self, index: int, round_number: int, answer: Answer, error: str) -> None:
        if self._master.answer is None or answer.number != self._master.answer.number:
            return
        if error:
            self._judge.wrong.append(f"what {answer} names was found wrong: {error}")
            return
        self._master.agreed.add(index)
        if len(self._master.agreed) == 2:
            go = Answer(number=answer.number, version=answer.version, memory=answer.memory, go=True)
            self._answer(round_number, go)

    def _tell(self, name: str, *words: Any) -> None:
        for node in self._nodes.values():
            node.order(name, *words)
