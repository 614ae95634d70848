"""Finds nodes of a job whose kernels answer nothing while others do.

Pure. A node without power or network leaves every attempt to connect to one of its pods without an
answer. A living one answers, if only with a refusal. Silence alone proves nothing: a policy may
drop every attempt, so only a pod that answered before counts. And this side may be cut off, so a
pod on another node must answer meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from holdfast_operator.plan.pods import Role
from holdfast_operator.pods.record import PodRecord
from holdfast_wire.messages import PodPhase

MOST_NODES: Final = 256
"""Nodes probed at a time, the suspect first: a single answer shows soon that others answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A pod that should answer."""

    node: str
    address: str
    """IP of the pod."""
    uid: str
    phase: PodPhase
    is_master: bool = False
    """True: its stream shows it; a silent connection would only appear in its log."""


def target_of(pod: PodRecord) -> ProbeTarget:
    """Return the pod as a target for the probe of its node."""
    is_master = pod.slot.role is Role.MASTER
    return ProbeTarget(pod.node, pod.address, pod.uid, pod.phase, is_master)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeReachability:
    """Knowledge of a job's nodes; without arguments, nothing is known."""

    own_node: str = ""
    """Node of this process: its answers prove nothing about the network. Empty: not known."""
    answered: frozenset[str] = frozenset()
    """Uids of pods that have answered once."""
    silent: frozenset[str] = frozenset()
    """Nodes of which no pod answered the last time, while others did."""
    unreachable: frozenset[str] = frozenset()
    """Silent nodes that count as gone or cut off."""

    def met(self, uid: str) -> NodeReachability:
        """Return the knowledge once a stream to this pod is open."""
        return dataclasses.replace(self, answered=self.answered | {uid})

    def hear(
        self, answers: Mapping[ProbeTarget, bool | None], suspects: Collection[str]
    ) -> NodeReachability:
        """Return the knowledge after one more round of probes; None: a probe was not possible.

        A node that was not suspect counts from its second silent round on: then all its pods were
        probed. If no other node answers, the knowledge before stays.
        """
        heard = {target.uid for target, answer in answers.items() if answer}
        answered = self.answered | heard
        there = {target.node for target, answer in answers.items() if answer}
        asked = {
            target.node
            for target, answer in answers.items()
            if answer is False and target.uid in answered
        }
        if not there - {self.own_node}:
            # A node that no pod was asked on cannot answer: it is not called silent for that.
            kept = self.unreachable & {target.node for target in answers} - there
            return dataclasses.replace(self, answered=answered, unreachable=kept)
        silent = frozenset(asked - there)
        known = self.silent | self.unreachable | frozenset(suspects)
        return dataclasses.replace(
            self, answered=answered, silent=silent, unreachable=silent & known
        )


def asked(targets: Iterable[ProbeTarget], suspects: Iterable[str]) -> tuple[ProbeTarget, ...]:
    """Return the pods to probe: every pod of the suspect nodes, and one of each other node."""
    doubted = frozenset(suspects)
    chosen: dict[tuple[str, str], ProbeTarget] = {}
    for target in targets:
        if can_answer(target):
            one = target.uid if target.node in doubted else ""
            chosen.setdefault((target.node, one), target)
    ordered = sorted(chosen.values(), key=lambda target: (target.node not in doubted, target.node))
    nodes = frozenset(list(dict.fromkeys(target.node for target in ordered))[:MOST_NODES])
    return tuple(target for target in ordered if target.node in nodes)


def can_answer(target: ProbeTarget) -> bool:
    """Return whether a pod runs on a node."""
    return target.phase is PodPhase.RUNNING and bool(target.node) and bool(target.address)
