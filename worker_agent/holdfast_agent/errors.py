"""The agent's error family. What is wrong on the wire is `holdfast_wire`'s, in the zygote its own.

No behaviour here: who catches an error decides what follows from it.
"""

from __future__ import annotations


class AgentError(Exception):
    """Something that ends the agent, with a text for the person who started it."""


class InputError(AgentError):
    """A flag or an environment variable is wrong: the text names it, its value and the remedy."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        """Name the flag or variable, its value, and what would be right."""
        super().__init__(f"{name}={value!r}: expected {expected}")
        self.name, self.value, self.expected = name, value, expected

    def under(self, name: str) -> InputError:
        """Return the same complaint under the name that the person has used."""
        return InputError(name, self.value, self.expected)


class RefusedError(AgentError):
    """The master refused this agent for good: another try would be refused too."""


class StandaloneError(AgentError):
    """The master process of a standalone run could not be started or ended unexpectedly."""


class ArenasError(AgentError):
    """The directory for arenas cannot be used."""
