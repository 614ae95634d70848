"""Kubernetes' `$(NAME)` in commands, arguments and environment values.

`$(NAME)` becomes the value where the name is known and stays as it is where it is not; `$$` is a
plain `$`, so `$$(NAME)` stays `$(NAME)`. A `$` before anything else stays, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$(\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with every reference to a known name replaced; what it brings in is left alone."""

    def put(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        return values.get(match.group(2), match.group(0))

    return _REFERENCE.sub(put, text)
