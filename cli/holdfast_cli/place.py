"""A job wherever it runs: how its master is reached, and what is known of its end.

Here are jobs of this machine; `cluster.job` has those of a Kubernetes cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import grpc

from holdfast_cli import ending
from holdfast_cli.ending import Ending
from holdfast_cli.failures import MasterUnreachableError
from holdfast_cli.home import JobHome, is_running
from holdfast_wire.channel import Options, channel_credentials, master_channel_options


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """What a gRPC channel to a master is made from."""

    target: str
    credentials: grpc.ChannelCredentials
    options: Options


class Place(Protocol):
    """A job that commands are about."""

    @property
    def name(self) -> str:
        """The job's."""

    @property
    def hint(self) -> str:
        """How a person names it to another command."""

    def ending(self) -> Ending | None:
        """How it ended; None where nobody wrote that down."""

    def is_running(self) -> bool:
        """Whether somebody still looks after it."""

    def reach(self) -> AbstractContextManager[Reach]:
        """Where its master is, for as long as the context lasts; raises MasterUnreachableError."""

    def why_unreachable(self, cause: str) -> str:
        """Say what is known of a master that does not answer."""

    def close(self) -> None:
        """Let go of what was opened."""


@dataclasses.dataclass(frozen=True, slots=True)
class LocalPlace:
    """A job of this machine."""

    home: JobHome

    @property
    def name(self) -> str:
        """The job's."""
        return self.home.record().name

    @property
    def hint(self) -> str:
        """How a person names it to another command."""
        return self.name

    def ending(self) -> Ending | None:
        """How it ended; None where nobody wrote that down."""
        return ending.read(self.home)

    def is_running(self) -> bool:
        """Whether its runner is alive."""
        return is_running(self.home.record())

    @contextlib.contextmanager
    def reach(self) -> Iterator[Reach]:
        """Where its master serves; raises MasterUnreachableError."""
        endpoint = self.home.endpoint()
        if endpoint is None:
            raise MasterUnreachableError(self.why_unreachable("it has not started to serve"))
        credentials = channel_credentials(self.home.tls("user"))
        options = master_channel_options(self.home.record().uid)
        yield Reach(endpoint.target, credentials, options)

    def why_unreachable(self, cause: str) -> str:
        """Say what is known of a master that does not answer."""
        if self.is_running():
            return f"the master of {self.name} does not answer: {cause}; see {self.home.logs}"
        return (
            f"job {self.name} is not running any more and left no word of its end; its logs are in "
            f"{self.home.logs}, and `holdfast journal show {self.name}` tells what happened"
        )

    def close(self) -> None:
        """Nothing is open."""


def place_of(job: JobHome | Place) -> Place:
    """The place of a job; the home of a local one will do."""
    return LocalPlace(job) if isinstance(job, JobHome) else job
