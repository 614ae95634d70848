"""Regular expressions as Kubernetes and the agents read them: RE2, which no pattern can hang."""

from __future__ import annotations

import re2  # type: ignore[import-untyped]


def found(pattern: str, text: str) -> bool:
    """Return whether the text contains a match of the pattern.

    Raises:
        ValueError: The pattern is not RE2.
    """
    try:
        return re2.search(pattern, text) is not None
    except re2.error as error:
        raise ValueError(f"{pattern!r} is not an RE2 pattern: {error}") from error


def fault_of(pattern: str) -> str | None:
    """Return the fault of a pattern that a person wrote; None if it is RE2."""
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return None
