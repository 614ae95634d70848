"""Cache of the cluster's nodes: of each its announced end, what speaks against it, its silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

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


class _Node(NamedTuple):
    """The newest look at a node."""

    uid: str
    notice: NoticeReceived | None
    silent: bool
    trouble: frozenset[NodeStrike]
    """Its conditions that say hardware trouble."""
    cordoned: bool


_UNKNOWN: Final = _Node("", None, silent=False, trouble=frozenset(), cordoned=True)
"""A cordon that was there before this process has no known time: it is not told of."""


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
        self._nodes: dict[str, _Node] = {}
        """By their names: a node that is made anew takes the place of the one before."""
        self._silent: frozenset[str] = frozenset()
        self._refused = False

    def notice(self, node: str) -> NoticeReceived | None:
        """Return the notice of a node; None: it has none, or nothing is known of it."""
        return self._nodes.get(node, _UNKNOWN).notice

    def silent(self) -> frozenset[str]:
        """Return the names of the nodes of whose kubelet the cluster hears nothing."""
        return self._silent

    def names(self) -> frozenset[str]:
        """Return the names of all nodes; empty before the first list."""
        return frozenset(self._nodes) if self.synced.is_set() else frozenset()

    def _uids(self) -> Collection[str]:
        return {node.uid for node in self._nodes.values()}

    def _take(self, body: dict[str, Any]) -> None:
        self._refused = False
        name = body["metadata"]["name"]
        now = _Node(
            body["metadata"]["uid"],
            notice_of(body),
            is_silent(body),
            frozenset(conditions_of(body)),
            is_cordoned(body),
        )
        before, self._nodes[name] = self._nodes.get(name, _UNKNOWN), now
        self._compare(name, before, now)
        news = sorted(now.trouble - before.trouble, key=lambda one: one.text)
        if not before.cordoned and (cordon := cordon_of(body, time.time())):
            news.append(cordon)
        if news:
            self._struck(news)

    def _drop(self, uid: str) -> None:
        for name in [name for name, node in self._nodes.items() if node.uid == uid]:
            self._compare(name, self._nodes.pop(name), _UNKNOWN)

    def _compare(self, name: str, before: _Node, now: _Node) -> None:
        if now.notice != before.notice:
            if now.notice is not None:
                _log.warning("node %s: %s", name, now.notice.text)
            self._heard(name)
        if now.silent is not before.silent:
            self._silent ^= {name}
            level = logging.WARNING if now.silent else logging.INFO
            how = "not heard" if now.silent else "heard again"
            _log.log(level, "node %s: its kubelet is %s", name, how)
            self._heard(name)

    def _say(self, error: KubeError) -> None:
        """Say once that the right to read nodes is missing: jobs do without."""
        if not isinstance(error, ApiRefusedError) or error.code != 403:
            super()._say(error)
        elif not self._refused:
            self._refused = True
            _log.warning("no notices of nodes: %s", error)
