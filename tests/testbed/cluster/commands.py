"""The command line `holdfast`, as a person with a kubeconfig for the test cluster has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


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
        process = self.start(*words)
        said, complained = process.communicate(timeout=60)
        assert process.returncode == code, f"{words}: {process.returncode}\n{said}\n{complained}"
        return said + complained

    def works(self, *words: str) -> bool:
        """Run a command; return whether it ended with 0."""
        process = self.start(*words)
        process.communicate(timeout=60)
        return process.returncode == 0

    def json(self, *words: str) -> Any:
        """Run a command with `-o json`; return what it printed."""
        return json.loads(self.run(*words, "-o", "json"))
