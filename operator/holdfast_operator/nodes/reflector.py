"""Cache of the cluster's nodes: of each its announced end, what speaks against it, its silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.kube.reflector import Reflector
from holdfast_operator.nodes.conditions import (
    conditions_of,
    cordon_of,
    is_cordoned,
    is_silent,
    notice_of,
)
from holdfast_operator.nodes.strikes import NodeStrike
from holdfast_wire.messages import NoticeReceived

_log = logging.getLogger(__name__)


class NodeReflector(Reflector):
    """Notices by the name of their node."""

    def __init__(
        self,
        client: KubeClient,
        heard: Callable[[str], None],
        struck: Callable[[Sequence[NodeStrike]], None] = lambda _: None,
    ) -> None:
        """Begin without nodes.

        Args:
            client: The API server.
            heard: Called with the name of a node whose notice changed, that fell silent, or that is
                heard again.
            struck: Called with what speaks against a node: conditions, each at least once, and
                cordons that this process sees come.
        """
        super().__init__(client, "/api/v1/nodes")
        self._heard = heard
        self._struck = struck
        self._trouble: dict[str, frozenset[NodeStrike]] = {}
        """Conditions of each node, by its name, that say hardware trouble."""
        self._open: set[str] = set()
        """Names of the nodes that were seen without a cordon the last time."""
        self._names: dict[str, str] = {}
        """Name of each node, by its uid."""
        self._notices: dict[str, NoticeReceived] = {}
        self._silent: frozenset[str] = frozenset()
        self._refused = False

    def notice(self, node: str) -> NoticeReceived | None:
        """Return the notice of a node; None: it has none, or nothing is known of it."""
        return self._notices.get(node)

    def silent(self) -> frozenset[str]:
        """Return the names of the nodes of whose kubelet the cluster hears nothing."""
        return self._silent

    def names(self) -> frozenset[str]:
        """Return the names of all nodes; empty before the first list."""
        return frozenset(self._names.values()) if self.synced.is_set() else frozenset()

    def _uids(self) -> Collection[str]:
        return self._names.keys()

    def _take(self, body: dict[str, Any]) -> None:
        self._refused = False
        name = body["metadata"]["name"]
        self._names[body["metadata"]["uid"]] = name
        self._note(name, notice_of(body))
        self._note_silence(name, silent=is_silent(body))
        self._judge(name, body)

    def _drop(self, uid: str) -> None:
        name = self._names.pop(uid, "")
        if name not in self._names.values():
            self._note(name, None)
            self._note_silence(name, silent=False)
            self._trouble.pop(name, None)
            self._open.discard(name)

    def _judge(self, name: str, body: dict[str, Any]) -> None:
        """Report what is new; a cordon that was there before this process has no known time."""
        before, trouble = self._trouble.get(name, frozenset()), frozenset(conditions_of(body))
        self._trouble[name] = trouble
        news = sorted(trouble - before, key=lambda one: one.text)
        cordon = cordon_of(body, time.time()) if name in self._open else None
        if cordon is not None:
            news.append(cordon)
        if is_cordoned(body):
            self._open.discard(name)
        else:
            self._open.add(name)
        if news:
            self._struck(news)

    def _note(self, name: str, notice: NoticeReceived | None) -> None:
        if notice == self._notices.get(name):
            return
        if notice is None:
            del self._notices[name]
        else:
            self._notices[name] = notice
            _log.warning("node %s: %s", name, notice.text)
        self._heard(name)

    def _note_silence(self, name: str, *, silent: bool) -> None:
        if silent is not (name in self._silent):
            self._silent ^= {name}
            _log.log(
                logging.WARNING if silent else logging.INFO,
                "node %s: its kubelet is %s",
                name,
                "not heard" if silent else "heard again",
            )
            self._heard(name)

    def _say(self, error: KubeError) -> None:
        """Say once that the right to read nodes is missing: jobs do without."""
        if not isinstance(error, ApiRefusedError) or error.code != 403:
            super()._say(error)
        elif not self._refused:
            self._refused = True
            _log.warning("no notices of nodes: %s", error)
