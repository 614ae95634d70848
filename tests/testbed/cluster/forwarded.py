"""`kubectl port-forward`, as a person leaves it running in a terminal."""

from __future__ import annotations

import re
from typing import Final, Self

from cluster.kubectl import Kubectl
from house.patience import patience

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+\n")
_TIMEOUT_SECONDS: Final = 30.0 * patience()


class Forward:
    """One that runs until the context ends."""

    def __init__(self, kubectl: Kubectl, target: str, port: int) -> None:
        """Start it; a port of loopback that kubectl chooses leads to `port` of `target`."""
        words = ("port-forward", "--address=127.0.0.1", target, f":{port}")
        self._process = kubectl.start(*words)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = _FORWARDING.fullmatch(line)
        if found is None:
            self._process.kill()
            raise AssertionError(f"kubectl {words}: {line}{self._process.communicate()[0]}")
        self.port = int(found[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def running(self) -> bool:
        """Return whether kubectl still forwards."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """Wait for its end, which has to be a failure; return what it printed since the start."""
        said: str = self._process.communicate(timeout=_TIMEOUT_SECONDS)[0]
        assert self._process.returncode == 1, said
        return said
