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

from holdfast_operator.pods.record import PodRecord
from holdfast_wire.messages import PodPhase

MOST_NODES: Final = 256
"""Nodes probed at a time, the suspect first: a single answer shows soon that others answer."""


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
        self, answers: Mapping[PodRecord, bool | None], suspects: Collection[str]
    ) -> NodeReachability:
        """Return the knowledge after one more round of probes; None: a probe was not possible.

        A node that was not suspect counts from its second silent round on: then all its pods were
        probed. If no other node answers, the knowledge before stays.
        """
        answered = self.answered | {pod.uid for pod, answer in answers.items() if answer}
        there = {pod.node for pod, answer in answers.items() if answer}
        deaf = (pod for pod, answer in answers.items() if answer is False)
        asked = {pod.node for pod in deaf if pod.uid in answered}
        if not there - {self.own_node}:
            # A node that no pod was asked on cannot answer: it is not called silent for that.
            kept = self.unreachable & {pod.node for pod in answers} - there
            return dataclasses.replace(self, answered=answered, unreachable=kept)
        silent = frozenset(asked - there)
        known = self.silent | self.unreachable | frozenset(suspects)
        return dataclasses.replace(
            self, answered=answered, silent=silent, unreachable=silent & known
        )


def asked(pods: Iterable[PodRecord], suspects: Iterable[str]) -> tuple[PodRecord, ...]:
    """Return the pods to probe: every pod of the suspect nodes, and one of each other node."""
    doubted = frozenset(suspects)
    chosen: dict[tuple[str, str], PodRecord] = {}
    for pod in filter(can_answer, pods):
        one = pod.uid if pod.node in doubted else ""
        chosen.setdefault((pod.node, one), pod)
    ordered = sorted(chosen.values(), key=lambda pod: (pod.node not in doubted, pod.node))
    nodes = frozenset(list(dict.fromkeys(pod.node for pod in ordered))[:MOST_NODES])
    return tuple(pod for pod in ordered if pod.node in nodes)


def can_answer(pod: PodRecord) -> bool:
    """Return True if a pod runs on a node."""
    return pod.phase is PodPhase.RUNNING and bool(pod.node) and bool(pod.address)
