"""Between the keeper's words and the wire's messages. Nothing is decided here.

Imported by the first trainer that uses a `Checkpointer`, and by a master's first word about one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from holdfast.flash.decide.slots import Version
from holdfast.flash.gathering import Source
from holdfast.flash.lead import Answer, Question, Written
from holdfast.flash.led import LedService
from holdfast.flash.persisting import Grant
from holdfast_agent.evidence import cut
from holdfast_wire.messages import (
    CheckpointHeld,
    CheckpointShard,
    CheckpointVersion,
    CommitStep,
    HeldPart,
    Origin,
    OriginChecked,
    ReleaseBefore,
    RestoreAsked,
    SaveHeld,
    StepAnnounced,
    StepCommitted,
)

MOST_HELD = 8

Word = Callable[[LedService], None]
"""What a master's message comes to, on the keeper's thread."""


def held(versions: Collection[Version], *, whole: bool) -> CheckpointHeld:
    """Return what is in memory, the newest first."""
    newest = sorted(versions, reverse=True)[:MOST_HELD]
    return CheckpointHeld(versions=tuple(map(_to_wire, newest)), whole=whole)


def shard(parts: Written) -> CheckpointShard:
    """Return what became of a node's parts of a step."""
    return CheckpointShard(
        version=_to_wire(parts.version),
        world_size=parts.world,
        ranks=parts.ranks,
        root=parts.root,
        attempt=parts.attempt,
        bytes=parts.size,
        error=cut(parts.error),
    )


def committed(grant: Grant, error: str) -> StepCommitted:
    """Return what became of a grant."""
    return StepCommitted(version=_to_wire(grant.version), own=grant.own, error=cut(error))


def asked(question: Question) -> RestoreAsked:
    """Return the question what a round starts from."""
    told = question.told
    return RestoreAsked(
        memory=tuple(map(_to_wire, question.memory)),
        stored=tuple(map(_to_wire, question.stored)),
        told=None if told is None else _origin(told),
        parts=tuple(
            HeldPart(
                version=_to_wire(one.version),
                world_size=one.world,
                ranks=one.ranks,
                whole=one.whole,
                world=one.saved_by,
            )
            for one in question.parts
        ),
    )


def _origin(told: Answer) -> Origin:
    return Origin(
        origin_id=told.number,
        version=None if told.version is None else _to_wire(told.version),
        memory=told.memory,
        partial=told.partial,
        go=True,
    )


def checked(answer: Answer, error: str) -> OriginChecked:
    """Return whether an answer's share is as it was written."""
    return OriginChecked(origin_id=answer.number, error=cut(error))


def heard(message: Any, number: int) -> Word | None:
    """Return what a master's message about a round comes to; None: it is about no checkpoint."""
    make = _WORDS.get(type(message))
    return None if make is None else make(message, number)


def _on_origin(message: Origin, number: int) -> Word:
    answer = Answer(
        number=message.origin_id,
        version=_from_wire(message.version),
        memory=message.memory,
        go=message.go,
        share=message.share,
        shares=max(1, message.shares),
        notes=message.notes,
        partial=message.partial,
        sources=tuple(
            Source(node_rank=one.node_rank, address=one.address, ranks=one.ranks)
            for one in message.sources
        ),
    )
    return lambda service: service.start_from(number, answer)


def _on_grant(message: CommitStep, _: int) -> Word | None:
    version = _from_wire(message.version)
    if version is None:
        return None
    grant = Grant(
        version=version,
        world=message.world_size,
        root=message.root,
        attempt=message.attempt,
        own=message.own,
    )
    return lambda service: service.grant(grant)


def _on_announced(message: StepAnnounced, _: int) -> Word | None:
    version = _from_wire(message.version)
    if version is None:
        return None
    return lambda service: service.announce(version, message.error)


def _on_save_held(message: SaveHeld, _: int) -> Word | None:
    version = _from_wire(message.version)
    if version is None:
        return None
    return lambda service: service.save_held(version, message.attempt)


def _on_release(message: ReleaseBefore, _: int) -> Word:
    hopeless = frozenset(Version(one.lineage, one.step) for one in message.passed_over)
    return lambda service: service.release(_from_wire(message.complete), hopeless)


_WORDS: dict[type, Callable[[Any, int], Word | None]] = {
    Origin: _on_origin,
    CommitStep: _on_grant,
    StepAnnounced: _on_announced,
    ReleaseBefore: _on_release,
    SaveHeld: _on_save_held,
}


def _to_wire(version: Version) -> CheckpointVersion:
    return CheckpointVersion(lineage=version.lineage, step=version.step)


def _from_wire(version: CheckpointVersion | None) -> Version | None:
    return None if version is None else Version(version.lineage, version.step)
