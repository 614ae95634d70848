"""The real Prometheus in a test cluster: a pod that scrapes what the chart has it scrape."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from cluster.kubectl import Kubectl
from cluster.release import CHART

_SCRIPT: Final = Path(__file__).resolve().parents[3] / "scripts" / "cluster_tools.sh"
_NAME: Final = "prometheus"
_PORT: Final = 9090
_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.3


def prometheus_folder() -> Path:
    """Return the folder with prometheus and promtool, built where they are missing."""
    command = [str(_SCRIPT), "--metrics"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


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
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


class Prometheus:
    """One Prometheus, which scrapes every pod with a port named `metrics` each second."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        """Start it in the namespace of `kubectl`; `folder` takes its files."""
        self._kubectl = kubectl
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(_CONFIG))
        rights = f"{_NAME}-{kubectl.namespace}"
        kubectl.run("create", "serviceaccount", _NAME)
        kubectl.run("create", "clusterrole", rights, "--verb=get,list,watch", "--resource=pods")
        account = f"--serviceaccount={kubectl.namespace}:{_NAME}"
        kubectl.run("create", "clusterrolebinding", rights, f"--clusterrole={rights}", account)
        words = (
            str(prometheus_folder() / "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=0.0.0.0:{_PORT}",
        )
        container = {"name": _NAME, "image": "i", "command": list(words)}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _NAME},
            "spec": {"serviceAccountName": _NAME, "containers": [container]},
        }
        kubectl.run("create", "-f", "-", stdin=body)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that a query gives now; raises CommandFailedError."""
        url = f"http://127.0.0.1:{_PORT}/api/v1/query"
        words = ("curl", "-sS", "--get", "--data-urlencode", f"query={expression}", url)
        answer = json.loads(self._kubectl.run("exec", _NAME, "--", *words))
        assert answer["status"] == "success", f"{expression}: {answer}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def until(self, expression: str) -> list[dict[str, Any]]:
        """Wait until a query gives a series, and return what it gives."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            done = self._kubectl.try_run("get", "pod", _NAME, "-o", "jsonpath={.status.phase}")
            if done.stdout == "Running" and (found := self._try(expression)):
                return found
            time.sleep(_POLL_SECONDS)
        log = self._kubectl.try_run("logs", _NAME, "--tail=30").stdout
        raise AssertionError(f"no series of {expression} within {_SECONDS:g} s\n{log}")

    def _try(self, expression: str) -> list[dict[str, Any]]:
        try:
            return self.query(expression)
        except (RuntimeError, ValueError):
            return []  # it does not listen yet


_CONFIG: Final = {
    "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
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
