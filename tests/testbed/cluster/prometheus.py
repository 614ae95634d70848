"""The real Prometheus in a test cluster: a pod that scrapes what the chart has it scrape.

It has the chart's alerts, without the time for which they wait.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from cluster.forwarded import Forward
from cluster.kubectl import Kubectl
from cluster.release import CHART
from house.patience import patience

_SCRIPT: Final = Path(__file__).resolve().parents[3] / "scripts" / "cluster_tools.sh"
_NAME: Final = "prometheus"
_PORT: Final = 9090
_WAIT_SECONDS: Final = 60.0 * patience()
_ASK_SECONDS: Final = 10.0 * patience()
_POLL_SECONDS: Final = 0.2
_SERIES: Final = re.compile(r"\b(?:holdfast|up)\w*")


@functools.cache
def prometheus_folder() -> Path | None:
    """Return the folder with prometheus and promtool; None: they are not built here."""
    command = [str(_SCRIPT), "--metrics", "--no-build"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


NOT_BUILT: Final = "prometheus is not built here; run scripts/cluster_tools.sh --metrics"


def panels() -> Iterator[tuple[str, str]]:
    """Yield title and query of each panel of the chart's dashboard, its variables filled in."""
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    yield from _panels(board["panels"])


def _panels(found: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for one in found:
        for target in one.get("targets") or ():
            query = re.sub(r"\$(namespace|job)\b", ".*", target["expr"])
            yield one["title"], query.replace("$__rate_interval", "30s")
        yield from _panels(one.get("panels") or [])


def alerts() -> dict[str, str]:
    """Return the query of each alert of the chart by its name."""
    groups = _rules()["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return rules


class Prometheus:
    """One Prometheus, which scrapes every pod with a port named `metrics` each second."""

    def __init__(self, kubectl: Kubectl, folder: Path, programs: Path) -> None:
        """Start it in the namespace of `kubectl`.

        Args:
            kubectl: Of an admin.
            folder: Takes its files.
            programs: Has prometheus.
        """
        self._kubectl = kubectl
        rules = _rules()
        for group in rules["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                rule.pop("for", None)  # promtool's tests are about these
        (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_CONFIG))
        rights = f"{_NAME}-{kubectl.namespace}"
        kubectl.run("create", "serviceaccount", _NAME)
        kubectl.run("create", "clusterrole", rights, "--verb=get,list,watch", "--resource=pods")
        account = f"--serviceaccount={kubectl.namespace}:{_NAME}"
        kubectl.run("create", "clusterrolebinding", rights, f"--clusterrole={rights}", account)
        words = (
            str(programs / "prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=0.0.0.0:{_PORT}",
        )
        probe = {"httpGet": {"path": "/-/ready", "port": _PORT}, "periodSeconds": 1}
        container = {"name": _NAME, "image": "i", "command": list(words), "readinessProbe": probe}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _NAME},
            "spec": {"serviceAccountName": _NAME, "containers": [container]},
        }
        kubectl.run("create", "-f", "-", stdin=body)
        kubectl.run("wait", f"pod/{_NAME}", "--for=condition=Ready", "--timeout=50s")
        self._forward = Forward(kubectl, f"pod/{_NAME}", _PORT)

    def close(self) -> None:
        """End it, and take its rights away."""
        self._forward.__exit__()
        rights = f"{_NAME}-{self._kubectl.namespace}"
        for words in (
            ("pod", _NAME, "--force", "--grace-period=0"),
            ("clusterrolebinding", rights),
            ("clusterrole", rights),
        ):
            self._kubectl.try_run("delete", *words)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that a query gives now."""
        words = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self._forward.port}/api/v1/query?{words}"
        with urllib.request.urlopen(url, timeout=_ASK_SECONDS) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def until(
        self, expression: str, *, gone: bool = False, about: str = ""
    ) -> list[dict[str, Any]]:
        """Wait until a query gives a series, or none any more, and return what it gives.

        about: text with the series that a failure shows.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while bool(found := self.query(expression)) == gone:
            if time.monotonic() > deadline:
                names = sorted(set(_SERIES.findall(about or expression)))
                seen = "\n".join(f"{name}: {self.query(name)}" for name in names)
                what = "still a" if gone else "no"
                raise AssertionError(f"{what} series of {expression}\n{seen}")
            time.sleep(_POLL_SECONDS)
        return found

    def until_fires(self, alert: str, **labels: str) -> dict[str, str]:
        """Wait until an alert of the chart fires, and return its labels."""
        query = alerts()[alert]
        found: dict[str, str] = self.until(_firing(alert, labels), about=query)[0]["metric"]
        return found

    def until_ends(self, alert: str, **labels: str) -> None:
        """Wait until an alert fires no more."""
        self.until(_firing(alert, labels), gone=True, about=alerts()[alert])


def _firing(alert: str, labels: dict[str, str]) -> str:
    wanted = {"alertname": alert, "alertstate": "firing", **labels}
    return "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in wanted.items()) + "}"


_CONFIG: Final = {
    "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
    "rule_files": ["alerts.yml"],
    "scrape_configs": [
        {
            "job_name": "pods",
            "honor_labels": True,
            "kubernetes_sd_configs": [{"role": "pod"}],
            "relabel_configs": [
                {
                    "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                    "action": "keep",
                    "regex": "metrics",
                },
                {
                    "source_labels": ["__meta_kubernetes_namespace"],
                    "target_label": "namespace",
                },
                {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            ],
        }
    ],
}
