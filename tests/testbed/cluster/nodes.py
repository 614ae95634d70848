"""The process kubelet as tests start it, stop it, and tell it what to do wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from cluster.children import Child
from cluster.control_plane import ControlPlane
from house import forks
from house.patience import patience

_TESTBED: Final = Path(__file__).resolve().parents[1]
_SUPPORT: Final = f"{_TESTBED}{os.pathsep}{_TESTBED.parent / 'support'}"
_TIMEOUT_SECONDS: Final = 30.0 * patience()


class Nodes:
    """Some nodes of a cluster, all in one process of this machine. They need root."""

    def __init__(
        self,
        plane: ControlPlane,
        count: int = 2,
        gpus: int = 8,
        api_of_pods: int = 0,
        *,
        paper: int = 0,
        first: int = 1,
    ) -> None:
        """Start them, and wait until they take pods.

        Args:
            plane: Whose nodes they are.
            count: How many.
            gpus: That each of them says it has.
            paper: How many more, whose pods are nothing but their status.
            api_of_pods: Port at which pods reach the API server; 0: its own.
            first: Number of the first one's name: two of them in a cluster share no node, because
                the end of the one would take the node of the other away.
        """
        self._plane, self._numbers = plane, range(first, first + count + paper)
        port = plane.folder / "kubelet-port"
        port.unlink(missing_ok=True)
        # A mount namespace of its own: whatever it mounts goes with it.
        argv = ["unshare", "--mount", "--propagation", "private", sys.executable]
        argv += ["-m", "cluster.kubelet", f"--folder={plane.folder}", f"--token={plane.token}"]
        argv += [f"--api-port={plane.ports.api}", f"--nodes={count}", f"--gpus={gpus}"]
        argv += [f"--paper-nodes={paper}", f"--first={first}"]
        argv += [f"--api-of-pods={api_of_pods or plane.ports.api}"]
        path = os.pathsep.join([str(_SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with forks.shared() as (variables, files):
            variables["PYTHONPATH"] = path
            self._child = Child("kubelet", argv, plane.folder, variables, files)
        try:
            plane.until("the kubelet", lambda: port.exists() or not self._child.alive)
            if not self._child.alive:
                raise RuntimeError(f"the kubelet ended:\n{self._child.last_words()}")
        except BaseException:
            self._child.kill()
            raise
        self._port = int(port.read_text())

    @property
    def log(self) -> str:
        """Return the newest words of the nodes' log."""
        return self._child.last_words()

    def volumes(self, pattern: str, uids: Iterable[str]) -> list[Path]:
        """Return the volumes of these pods that match a pattern, as the kubelet sees them.

        Others may have left some: a pod that was deleted while its kubelet was away.
        """
        seen = Path(f"/proc/{self._child.pid}/root{self._plane.folder}")
        return sorted(found for uid in uids for found in seen.glob(f"pods/{uid}/volumes/{pattern}"))

    def tell(self, do: str, **wish: Any) -> None:
        """Have it misbehave; see `cluster.kubelet.control` for what it knows."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("POST", "/", json.dumps({"do": do, **wish}))
            response = connection.getresponse()
            said = response.read().decode()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise AssertionError(f"the kubelet refused: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill it; every process, mount and interface of its pods goes with it.

        Its nodes are taken away too: one that nobody serves counts as ready for some seconds, and a
        pod that the scheduler gives it would stay in its deletion for ever.
        """
        self._child.kill()
        with contextlib.suppress(OSError, http.client.HTTPException):  # the cluster may be gone
            for number in self._numbers:
                self._plane.api.delete(f"/api/v1/nodes/n{number}")
