"""What a keeper and a job master have to say to each other, and the way between them.

Belongs here: the words. Does not belong here: who says which when (`led`), messages of the wire
(the agent has them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast.flash.decide.slots import Version
from holdfast.flash.gathering import Peers, Source
from holdfast.flash.persisting import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The parts of all ranks here are on storage, or will not be."""

    version: Version
    world: int
    ranks: tuple[int, ...]
    root: str
    attempt: str
    size: int = 0
    """Bytes."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All ranks here wait to be told what their round starts from."""

    round: int
    memory: tuple[Version, ...]
    stored: tuple[Version, ...]
    parts: tuple[HeldPart, ...] = ()
    """What lies in memory here, whoever saved it."""
    told: Answer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """Parts of a version in memory here."""

    version: Version
    world: int
    """Ranks that the version consists of."""
    ranks: tuple[int, ...]
    """Those whose parts lie here."""
    whole: bool
    """These are all that any world needs."""
    saved_by: str
    """Names the world; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a round starts from, by the master."""

    number: int
    version: Version | None
    memory: bool
    go: bool
    """False: only check it."""
    share: int = 0
    shares: int = 1
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    """With memory: other nodes whose memory has what this one lacks."""
    partial: bool = False
    """Parts of it are nowhere: it cannot be written to storage."""


class Lead(Protocol):
    """The way to the master; called from the service's thread, and returns at once."""

    @property
    def job(self) -> str:
        """Uid of the job."""

    @property
    def peers(self) -> Peers:
        """The way to other agents."""

    def attempt(self, round_number: int) -> str:
        """Return the name of a world's attempts, the same on all of its nodes."""

    def world(self, round_number: int) -> str:
        """Return what names the world of a round, the same on all of its nodes; empty: unknown."""

    def held(self, round_number: int, versions: frozenset[Version], *, whole: bool) -> None:
        """Say what every rank here has in memory, after it changed.

        whole: Of each of them all that any world needs is here.
        """

    def written(self, parts: Written) -> None:
        """Say that a step's parts here are on storage, or will not be."""

    def committed(self, grant: Grant, error: str) -> None:
        """Say what became of a grant."""

    def asks(self, question: Question) -> None:
        """Ask what a round starts from."""

    def checked(self, round_number: int, answer: Answer, error: str) -> None:
        """Say whether an answer's share is as it was written."""
