"""A control plane for the tests of a run, and what must not have happened in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cluster.audit import refusals
from cluster.control_plane import ControlPlane
from cluster.crd import install_crd
from cluster.release import ACCOUNT


@contextlib.contextmanager
def watched(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Start it with the CRD, and stop it.

    The release's operator may not have asked for anything that its roles do not grant: it would
    log that, try again for ever, and most tests would not notice.
    """
    try:
        plane.start(lambda: install_crd(plane))
        yield plane
        refused = refusals(plane.audit_log, ACCOUNT, [*plane.api_starts[1:], *plane.without_rights])
        assert refused == [], f"the operator has no right to this: {refused[:20]}"
    finally:
        plane.stop()
