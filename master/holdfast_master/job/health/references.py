"""Reference figures of healthy nodes, between the journal's facts and the check's policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from holdfast_master.job.state.job_state import JobState
from holdfast_master.policies.preflight.references import Level, References
from holdfast_wire import messages as wire
from holdfast_wire.resources import Resource

K = TypeVar("K")
V = TypeVar("V")
_KNOWN = frozenset(one.value for one in Resource)


def known(state: JobState) -> References:
    """Return the findings of this job's earlier checks, without resources of another release."""
    levels = state.reference_levels.values()
    own = (
        (node.node, figure) for node in state.node_references.values() for figure in node.figures
    )
    return References(
        by_kind={
            (level.kind, Resource(level.resource)): Level(level.good, level.weight)
            for level in levels
            if level.resource in _KNOWN
        },
        own={
            (node, Resource(figure.resource)): figure.good
            for node, figure in own
            if figure.resource in _KNOWN
        },
    )


def learned(
    before: References, after: References, forgotten: Collection[str]
) -> wire.ReferencesLearned | None:
    """The fact that makes `before` into `after`; None: nothing has changed."""
    changed = {node for (node, _), good in _new(before.own, after.own) if node not in forgotten}
    levels = tuple(
        wire.ReferenceLevel(
            key=f"{resource.value}: {kind}",
            resource=resource.value,
            kind=kind,
            good=level.good,
            weight=level.weight,
        )
        for (kind, resource), level in _new(before.by_kind, after.by_kind)
    )
    nodes = tuple(_of_node(after, node) for node in sorted(changed))
    if not (levels or nodes or forgotten):
        return None
    return wire.ReferencesLearned(levels=levels, nodes=nodes, forgotten=tuple(sorted(forgotten)))


def _new(before: Mapping[K, V], after: Mapping[K, V]) -> list[tuple[K, V]]:
    return [(key, value) for key, value in after.items() if before.get(key) != value]


def _of_node(references: References, node: str) -> wire.NodeReferences:
    figures = (
        wire.NodeReference(resource=resource.value, good=good)
        for (name, resource), good in references.own.items()
        if name == node
    )
    return wire.NodeReferences(node=node, figures=tuple(figures))
