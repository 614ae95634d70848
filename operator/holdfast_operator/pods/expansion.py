"""Kubernetes' `$(NAME)` in commands, arguments and environment values.

`$(NAME)` becomes the value of a known name; an unknown one stays as it is. `$$` is a plain `$`, so
`$$(NAME)` becomes `$(NAME)`. A `$` before any other character stays, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$(\$|\(([^)]*)\))")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text with known names replaced; references in their values stay as they are."""

    def put(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        return values.get(match.group(2), match.group(0))

    return _REFERENCE.sub(put, text)
