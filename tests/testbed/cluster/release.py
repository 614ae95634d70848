"""The operator in a test cluster, as people install it: a release of the chart by real helm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cluster.kubectl import Kubectl

CHART: Final = Path(__file__).resolve().parents[3] / "charts" / "holdfast"
NAMESPACE: Final = "holdfast-system"
ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:holdfast-operator"
HISTORY: Final = "holdfast-operator-node-history"
"""The operator's ConfigMap with strikes against nodes."""
_DEPLOYMENT: Final = "deploy/holdfast-operator"
_WAIT: Final = ("--wait", "--timeout=50s")


class Release:
    """One release; the CRD is the cluster's own unless `crds.enabled` is among the values."""

    def __init__(
        self,
        kubeconfig: Path,
        name: str = "holdfast",
        namespace: str = NAMESPACE,
        chart: Path = CHART,
    ) -> None:
        self.name, self.chart = name, chart
        self.kubectl = Kubectl(kubeconfig, namespace)

    def install(self, *values: str, flags: tuple[str, ...] = ()) -> None:
        """Install it, and wait until the operator is ready; `values` are KEY=VALUE."""
        chosen = self._values(values)
        self.kubectl.helm(
            "install", self.name, str(self.chart), "--create-namespace", *_WAIT, *flags, *chosen
        )

    def upgrade(self, *values: str, flags: tuple[str, ...] = ()) -> None:
        """Change its values, and wait until the operator is ready again."""
        chosen = self._values(values)
        self.kubectl.helm("upgrade", self.name, str(self.chart), *_WAIT, *flags, *chosen)

    def rollback(self, revision: int) -> None:
        """Go back to a revision, and wait until the operator is ready again."""
        self.kubectl.helm("rollback", self.name, str(revision), *_WAIT)

    def test(self) -> str:
        """Run the chart's own test; return what it said, raise CommandFailedError if it failed."""
        return self.kubectl.helm("test", self.name, "--logs", "--timeout=50s")

    def until_rolled_out(self) -> None:
        """Wait until all of the operator's pods are those of its newest template, and ready."""
        self.kubectl.run("rollout", "status", _DEPLOYMENT, "--timeout=55s")

    def restart(self) -> None:
        """Have another pod of the operator take over, and wait until it is ready."""
        self.kubectl.run("rollout", "restart", _DEPLOYMENT)
        self.until_rolled_out()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Do something while there is no operator; one is told to start again after it."""
        self.kubectl.run("scale", _DEPLOYMENT, "--replicas=0")
        self.kubectl.try_run("wait", "pod", "--all", "--for=delete", "--timeout=50s")
        try:
            yield
        finally:
            self.kubectl.run("scale", _DEPLOYMENT, "--replicas=1")

    def uninstall(self) -> None:
        """Take it away."""
        self.kubectl.helm("uninstall", self.name, *_WAIT)

    def remove(self) -> None:
        """Take it away, the pod first: without its rights it would ask for what it may not."""
        names = ("delete", "deploy", "--all", "--cascade=foreground", "--timeout=50s")
        self.kubectl.run(*names)
        self.uninstall()

    def clear(self) -> None:
        """Take away what is left of one whose removal failed, with its pods at once.

        Its name would stay taken, and no later test could install.
        """
        self.kubectl.try_run("delete", "deploy", "--all", "--wait=false")
        self.kubectl.try_run("delete", "pods", "--all", "--force", "--grace-period=0")
        self.kubectl.helm("uninstall", self.name, "--ignore-not-found", *_WAIT)

    def operator_log(self) -> str:
        """The last lines of the operator's log."""
        names = self.kubectl.run("get", "deploy", "-o", "name").split()
        done = [self.kubectl.try_run("logs", name, "--tail=60") for name in names]
        return "\n".join(one.stdout + one.stderr for one in done)

    def _values(self, values: tuple[str, ...]) -> list[str]:
        return [f"--set={value}" for value in ("crds.enabled=false", *values)]
