"""Orders to the measuring process, and its reports: tasks and figures, one datagram each.

Does not belong here: a measurement, deadlines (`runner`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast_agent.policies.node_check import Reading
from holdfast_wire import datagrams
from holdfast_wire.resources import Resource


class NotMeasurableError(Exception):
    """A resource cannot be measured here, which says nothing about the node; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task for the process."""

    name: str
    """A name of `program.TASKS`."""
    resources: tuple[Resource, ...]
    """The figures that it has, in order."""
    seconds: float = 10.0
    """Longest time for each figure, s. A figure that takes longer counts as a hang."""
    torch: bool = False
    """It needs torch."""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of its function. `descriptor` is an index into those that come with the order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """To the process: tasks, one after another; with the descriptors that they use."""

    tasks: tuple[Task, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TaskBegun:
    """From the process: a task of the order begins, by its index."""

    at: int


@dataclasses.dataclass(frozen=True, slots=True)
class TaskEnded:
    """From the process: the task is done; most memory that was resident so far."""

    at: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Measuring:
    """From the process: what is measured from now on; a hang is blamed on it."""

    resource: Resource
    subject: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceFound:
    """From the process: an accelerator, by its model."""

    model: str


REPORTS = (TaskBegun, TaskEnded, Measuring, DeviceFound, Reading)


class FigureReporter:
    """Sends figures to the runner as soon as they are there."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._current: Measuring | None = None

    def send(self, report: TaskBegun | TaskEnded | Measuring | DeviceFound | Reading) -> None:
        """Send one report."""
        datagrams.send(self._socket, datagrams.encode(report))

    def begins(self, resource: Resource, subject: str = "") -> None:
        """Report the figure that is measured from now on."""
        self._current = Measuring(resource, subject)
        self.send(self._current)

    def figure(self, value: float) -> None:
        """Report the figure of what is being measured."""
        if self._current is None:
            raise RuntimeError("a figure was reported before `begins` named its resource")
        resource, subject = self._current.resource, self._current.subject
        self.send(Reading(resource=resource, subject=subject, value=value))

    @contextlib.contextmanager
    def measures(self, resource: Resource, subject: str = "") -> Iterator[None]:
        """Report an error of the block as this resource's result, and go on behind the block."""
        self.begins(resource, subject)
        try:
            yield
        except NotMeasurableError as error:
            self.send(Reading(resource=resource, subject=subject, skipped=str(error)))
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            self.send(Reading(resource=resource, subject=subject, error=text))
