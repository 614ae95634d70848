"""Resume tokens of WatchJob. Pure."""

from __future__ import annotations

import dataclasses
import re

_TOKEN = re.compile(r"(\d{1,19}):([^:]{1,128}):(\d{1,19})")


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """What a watcher has read: everything up to one event of one master process."""

    epoch: int
    incarnation: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.incarnation}:{self.sequence}"


def parse_token(text: str) -> Token | None:
    """Return the token that `text` spells; None where it spells none."""
    match = _TOKEN.fullmatch(text)
    return Token(int(match[1]), match[2], int(match[3])) if match else None
