"""Errors of the agent. Errors of the wire are in `holdfast_wire`, those of the zygote in `zygote`.

No behaviour here: the code that catches an error decides on the reaction.
"""

from __future__ import annotations


class AgentError(Exception):
    """An error that ends the agent, with a text for the person who started it."""


class InputError(AgentError):
    """A flag or an environment variable is wrong: the text names it, its value and the remedy."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        """Take the name of the flag or variable, its value, and a description of valid values."""
        super().__init__(f"{name}={value!r}: expected {expected}")
        self.name, self.value, self.expected = name, value, expected

    def under(self, name: str) -> InputError:
        """Return the same error under the name that the person has used."""
        return InputError(name, self.value, self.expected)


class AgentRefusedError(AgentError):
    """The master refused this agent for good: it would refuse another try too."""


class StandaloneError(AgentError):
    """The master process of a standalone run could not be started or ended unexpectedly."""


class ArenasError(AgentError):
    """The directory for arenas cannot be used."""
