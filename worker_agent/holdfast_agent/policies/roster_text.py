"""Text of a roster for ranks, as `holdfast.local_sgd.policies.outer_roster` reads it. Pure."""

from __future__ import annotations

import json

from holdfast_wire.messages import OuterRoster


def write(roster: OuterRoster) -> str:
    """Return a roster of the wire as one line of JSON."""
    host = f"[{roster.store_host}]" if ":" in roster.store_host else roster.store_host
    return json.dumps(
        {
            "epoch": roster.epoch,
            "replicas": list(roster.replicas),
            "store": f"{host}:{roster.store_port}",
            "since": list(roster.since),
        }
    )
