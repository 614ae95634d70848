"""Interface between a scenario and a system under test."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

NODES = 2
"""Nodes of one worker each: what two cores carry without drowning the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a system needs to start its job."""

    python: str
    """The interpreter of the environment that holds the system and torch."""
    script: Path
    directory: Path
    """Log files, and the script's log and saves: on shared memory where there is any."""
    variant: str
    """"default", or "tuned": the system's own time-outs as low as it accepts."""
    restore: str
    """"torch" or "dcp"; "flash": Holdfast's own, with a script of its own."""
    collective_timeout_s: float | None
    """What the tuned script gives its collectives, seconds; None: torch's 30 min."""

    @property
    def log_directory(self) -> Path:
        """Return where the script's ranks write their steps."""
        return self.directory / "steps"

    def script_arguments(self) -> list[str]:
        """Return the script's command line, the same for every system."""
        arguments = [
            f"--log-dir={self.log_directory}",
            f"--saves-dir={self.directory / 'saves'}",
            f"--restore={self.restore}",
        ]
        if self.collective_timeout_s is not None:
            arguments.append(f"--collective-timeout={self.collective_timeout_s}")
        return arguments


class System(ABC):
    """One job of two nodes, run by one system.

    Everything it starts lives in the trial's sandbox and dies with it, so there is no ``stop``.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def start(self) -> None:
        """Start the job; returns at once."""

    @abstractmethod
    def agent_of(self, worker: int) -> int:
        """Return the pid of the agent above the process ``worker``; LookupError if there is none.

        "Agent" is the process whose death, with all below it, is the loss of a node.
        """

    @abstractmethod
    def bring_back(self, lost: int, since: float) -> float:
        """Start a new agent in place of ``lost``, which was killed at ``since``.

        Returns the monotonic time at which its process began. A system that replaces nodes by
        itself only waits for that and says when it was.
        """

    @abstractmethod
    def ended(self) -> str | None:
        """Say why this job can never train again, or None while it still could."""
