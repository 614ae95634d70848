"""Events about a ConfigMap of the operator's own: people see them with `kubectl describe`.

Belongs here: one warning at a time. Does not belong here: events about jobs (`recorder`).
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid

from holdfast_operator.events.recorder import CONTROLLER, LONGEST_NOTE
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import KubeError

_log = logging.getLogger(__name__)


class ConfigMapEvents:
    """Events about one ConfigMap."""

    def __init__(self, client: KubeClient, namespace: str, name: str, identity: str) -> None:
        """Prepare.

        Args:
            client: The API server.
            namespace: Namespace of the ConfigMap.
            name: Its name.
            identity: Name of this process among its replicas.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity

    async def warn(self, uid: str, reason: str, text: str) -> None:
        """Write a warning; a failure is logged, since nothing depends on an event.

        Args:
            uid: Uid of the ConfigMap.
            reason: CamelCase.
            text: For people.
        """
        now = dt.datetime.now(dt.UTC)
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{self._name}.{uuid.uuid4().hex[:16]}",
                "namespace": self._namespace,
            },
            "regarding": {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": self._name,
                "namespace": self._namespace,
                "uid": uid,
            },
            "eventTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}",
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity[:128],
            "type": "Warning",
            "reason": reason,
            "action": reason,
            "note": text.encode()[:LONGEST_NOTE].decode(errors="ignore"),
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{self._namespace}/events"
        try:
            await self._client.call("POST", path, event)
        except KubeError as error:
            _log.info("event %s: %s", reason, error)
