"""The real kubectl and helm against a test cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cluster.tools import tools_folder
from house.patience import patience

_TIMEOUT_SECONDS = 60.0 * patience()
_LIMIT = re.compile(r"--timeout=([\d.]+)s")


class CommandFailedError(RuntimeError):
    """kubectl or helm ended badly; carries what it printed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a kubeconfig, in one namespace."""

    kubeconfig: Path
    namespace: str = "default"

    def try_run(self, *words: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        """Run it; `stdin` is an object to write as JSON, or a text."""
        return self._run("kubectl", words, stdin)

    def run(self, *words: str, stdin: Any = None) -> str:
        """Run it and return what it printed; raises CommandFailedError."""
        return _printed(self.try_run(*words, stdin=stdin))

    def helm(self, *words: str) -> str:
        """Run helm and return what it printed; raises CommandFailedError."""
        return _printed(self._run("helm", words, None))

    def json(self, *words: str) -> Any:
        """Run it with `-o json` and return what it printed."""
        return json.loads(self.run(*words, "-o", "json"))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it; the caller waits for its end."""
        return subprocess.Popen(
            [tools_folder() / "kubectl", "--namespace", self.namespace, *map(_patient, words)],
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _environ(self) -> dict[str, str]:
        """Its own home: what the person at this machine configured has no part in a test."""
        home = str(self.kubeconfig.parent)
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": home}

    def _run(
        self, tool: str, words: tuple[str, ...], stdin: Any
    ) -> subprocess.CompletedProcess[str]:
        text = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
        return subprocess.run(
            [tools_folder() / tool, "--namespace", self.namespace, *map(_patient, words)],
            env=self._environ(),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )


def _patient(word: str) -> str:
    """Return a word of a command; a limit of seconds grows with the machine's slowness."""
    found = _LIMIT.fullmatch(word)
    return f"--timeout={float(found[1]) * patience():.1f}s" if found else word


def watch_events(output: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and object of what `get --watch -o json --output-watch-events` prints."""
    decoder, text = json.JSONDecoder(), ""
    for line in output:
        text += line
        # One object on a line, or one over many: as kubectl likes.
        while text.lstrip().startswith("{"):
            try:
                event, end = decoder.raw_decode(text.lstrip())
            except ValueError:
                break  # the rest of it is still to come
            text = text.lstrip()[end:]
            yield event["type"], event["object"]


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise CommandFailedError(f"{done.args} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
