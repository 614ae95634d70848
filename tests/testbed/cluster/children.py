"""Programs that die with the test that started them, each with a log of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from house.patience import patience

_LAUNCHER = Path(__file__).with_name("dies_with_parent.py")
_TAIL = 2000


class Child:
    """One running program. SIGKILL is enough for each of them: their data goes as well."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
    ) -> None:
        """Start it, with these open files; what it prints goes to NAME.log in `folder`."""
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid()), *argv],
                cwd=folder,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=files,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-_TAIL:]

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it, and wait until it is gone."""
        self._process.kill()
        self._process.wait(10 * patience())
