"""Answers to DNS questions about Services. Pure."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

DOMAIN: Final = "cluster.local"
_TYPE_A: Final = 1
_AUTHORITATIVE: Final = 0x8580
_NO_SUCH_NAME: Final = 3
_TTL_SECONDS: Final = 1

Objects = Mapping[str, Mapping[str, Any]]


def endpoints(slices: Objects, namespace: str, service: str) -> Iterator[tuple[Any, list[Any]]]:
    """Every ready endpoint of a Service, each with the ports of its slice."""
    for one in slices.values():
        metadata = one["metadata"]
        owner = metadata.get("labels", {}).get("kubernetes.io/service-name")
        if (metadata["namespace"], owner) == (namespace, service):
            for endpoint in one.get("endpoints") or ():
                if endpoint["conditions"].get("ready"):
                    yield endpoint, one.get("ports") or []


def resolve(name: str, services: Objects, slices: Objects) -> list[str]:
    """Addresses of `service.namespace.svc.cluster.local`, or of a host of a headless Service."""
    words = name.lower().rstrip(".").split(".")
    suffix = ["svc", *DOMAIN.split(".")]
    if words[-len(suffix) :] != suffix or not 2 <= len(words) - len(suffix) <= 3:
        return []
    *host, service, namespace = words[: -len(suffix)]
    for one in services.values():
        metadata = one["metadata"]
        if (metadata["name"], metadata["namespace"]) != (service, namespace):
            continue
        address = one["spec"].get("clusterIP")
        if not host and address != "None":
            return [address]
        return [
            address
            for endpoint, _ in endpoints(slices, namespace, service)
            if not host or endpoint.get("hostname") == host[0]
            for address in endpoint["addresses"]
        ]
    return []


def answer(question: bytes, services: Objects, slices: Objects) -> bytes:
    """The response to one query packet; only A records exist."""
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode(errors="replace"))
        at += question[at] + 1
    (kind,) = struct.unpack(">H", question[at + 1 : at + 3])
    found = resolve(".".join(labels), services, slices)
    records = found if kind == _TYPE_A else []
    flags = _AUTHORITATIVE | (0 if found else _NO_SUCH_NAME)
    head = question[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
    body = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", _TYPE_A, 1, _TTL_SECONDS, 4) + socket.inet_aton(address)
        for address in records
    )
    return head + question[12 : at + 5] + body
