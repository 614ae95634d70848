"""The command line `holdfast`, as a person with a kubeconfig for the test cluster has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from house import forks


class Commands:
    """The command line as a person with a kubeconfig has it."""

    def __init__(self, kubeconfig: Path, home: Path, namespace: str) -> None:
        self.namespace = namespace
        self._environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOLDFAST_HOME": str(home)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in the job's namespace."""
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast_cli.main", *words, "-n", self.namespace],
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command; return what it printed."""
        done = self._done(*words)
        told = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, told
        return done.stdout + done.stderr

    def works(self, *words: str) -> bool:
        """Run a command; return whether it ended with 0."""
        return self._done(*words).returncode == 0

    def json(self, *words: str) -> Any:
        """Run a command with `-o json`; return what it printed."""
        return json.loads(self.run(*words, "-o", "json"))

    def _done(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forks.run(
            ["-m", "holdfast_cli.main", *words, "-n", self.namespace],
            env=self._environ,
            timeout=60,
            imports=forks.Imports.SERVICES,
        )
