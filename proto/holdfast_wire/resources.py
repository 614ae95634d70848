"""Resources of a node that health checks measure: their units, their better end, their tolerances.

Belongs here: what the agent, which measures, and the master, which judges, must agree on. Does not
belong here: a measurement (`holdfast_agent.health`), a verdict on a node (the master's
`policies/preflight`).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Final


class Resource(enum.StrEnum):
    """A resource that has one figure per node, per device or per pair of nodes."""

    CPU_MATMUL = "cpu_matmul"
    """Matrix products in float32 on all CPUs that the process may use."""
    MEMORY_BANDWIDTH = "memory_bandwidth"
    """Bytes read and written by copies in main memory."""
    DEVICE_MATMUL = "device_matmul"
    """Matrix products in bfloat16 on one accelerator."""
    DEVICE_MEMORY_BANDWIDTH = "device_memory_bandwidth"
    """Bytes read and written by copies in the memory of one accelerator."""
    DEVICE_MEMORY_FREE = "device_memory_free"
    """Share of an accelerator's memory that no process has taken."""
    HOST_TO_DEVICE = "host_to_device"
    """Copies from pinned main memory to one accelerator."""
    DEVICE_TO_HOST = "device_to_host"
    """Copies from one accelerator to pinned main memory."""
    DISK_ROOM = "disk_room"
    DISK_WRITE = "disk_write"
    """Writes that are durable (fdatasync)."""
    DISK_READ = "disk_read"
    SHM_ROOM = "shm_room"
    SHM_WRITE = "shm_write"
    CLOCK_OFFSET = "clock_offset"
    """Distance of the clock from a reference clock, without its sign."""
    LINK_BANDWIDTH = "link_bandwidth"
    """TCP between two nodes, the slower direction."""
    LINK_LATENCY = "link_latency"
    """One message there and back between two nodes, the median."""
    ALLREDUCE = "allreduce"
    """Bytes of a tensor that gloo reduces between two nodes in a second."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """Properties of a resource's figures."""

    unit: str
    higher_is_better: bool = True
    tolerance: float = 0.0
    """Share of the reference below which a figure is slow, from 0 to 1; 0: limits alone judge it.
    Twice what the figure varies between equal nodes, so that noise is not taken for a fault."""
    least: float | None = None
    """A smaller figure is a fault, whatever other nodes have."""
    most: float | None = None
    """A larger figure is a fault, whatever other nodes have."""
    of_pair: bool = False
    """Two nodes have it together."""


TRAITS: Final[Mapping[Resource, Trait]] = {
    Resource.CPU_MATMUL: Trait(unit="TFLOP/s", tolerance=0.7),
    Resource.MEMORY_BANDWIDTH: Trait(unit="GB/s", tolerance=0.65),
    # Equal accelerators differ by 2 to 5 %; a throttled one loses 20 % and more.
    Resource.DEVICE_MATMUL: Trait(unit="TFLOP/s", tolerance=0.85),
    Resource.DEVICE_MEMORY_BANDWIDTH: Trait(unit="GB/s", tolerance=0.85),
    # A process that was left behind holds more; a bare context takes about 1 %.
    Resource.DEVICE_MEMORY_FREE: Trait(unit="%", least=70.0),
    Resource.HOST_TO_DEVICE: Trait(unit="GB/s", tolerance=0.7),
    Resource.DEVICE_TO_HOST: Trait(unit="GB/s", tolerance=0.7),
    Resource.DISK_ROOM: Trait(unit="GiB", least=1.0),
    Resource.DISK_WRITE: Trait(unit="GB/s", tolerance=0.4),
    Resource.DISK_READ: Trait(unit="GB/s", tolerance=0.4),
    # NCCL takes segments of up to 10 MB each and fails where none is left.
    Resource.SHM_ROOM: Trait(unit="GiB", least=1 / 32),
    Resource.SHM_WRITE: Trait(unit="GB/s", tolerance=0.5),
    # Certificates are backdated by minutes; times in logs of several nodes are compared by people.
    Resource.CLOCK_OFFSET: Trait(unit="s", higher_is_better=False, most=1.0),
    Resource.LINK_BANDWIDTH: Trait(unit="Gbit/s", tolerance=0.6, of_pair=True),
    Resource.LINK_LATENCY: Trait(unit="us", higher_is_better=False, tolerance=0.25, of_pair=True),
    Resource.ALLREDUCE: Trait(unit="GB/s", tolerance=0.6, of_pair=True),
}
"""Every resource with its properties."""

PAIR_RESOURCES: Final = tuple(one for one in Resource if TRAITS[one].of_pair)
"""Resources that two nodes have together."""


def label(resource: Resource) -> str:
    """Return the words of a resource for people: "disk write"."""
    return resource.value.replace("_", " ")


def amount(resource: Resource, value: float) -> str:
    """Return a figure with its unit for people: "1.25 GB/s"."""
    return f"{value:.3g} {TRAITS[resource].unit}"


def goodness(resource: Resource, value: float) -> float:
    """Return a figure on a scale where more is better and equal ratios are equal distances.

    Args:
        resource: Resource that was measured.
        value: Its figure, in the resource's unit, 0 or more.

    Returns:
        The natural logarithm, negative where less is better; minus infinity for a figure that is
        no number, negative or infinite.
    """
    if not 0 <= value < math.inf:
        return -math.inf
    logarithm = math.log(value) if value else -math.inf
    return logarithm if TRAITS[resource].higher_is_better else -logarithm


def value_of(resource: Resource, good: float) -> float:
    """Return the figure that has this goodness, in the resource's unit."""
    return math.exp(good if TRAITS[resource].higher_is_better else -good)


def level_of(goods: Iterable[float]) -> float:
    """Return the goodness that a quarter of like nodes or devices reach, at least one of them.

    A fault makes a node slower, never faster. So up to three quarters may be slow, and up to a
    quarter may be faster than the rest (two pods on one machine, for example), before the level is
    wrong.
    """
    ordered = sorted(goods, reverse=True)
    return ordered[len(ordered) // 4]


def margin(resource: Resource) -> float:
    """Return the distance in goodness from which a figure is slow; infinite without a tolerance."""
    tolerance = TRAITS[resource].tolerance
    return -math.log(tolerance) if tolerance else math.inf


def share(resource: Resource, value: float, reference: float) -> float:
    """Return the share of the reference that a figure reaches: 0.5 for half as fast."""
    return value / reference if TRAITS[resource].higher_is_better else reference / value


def broken_limit(resource: Resource, value: float) -> str:
    """Return the sentence about a limit that a figure breaks, or "" if it breaks none."""
    trait, words = TRAITS[resource], f"{label(resource)} is {amount(resource, value)}"
    if trait.least is not None and not value >= trait.least:
        return f"{words}, the least is {amount(resource, trait.least)}"
    if trait.most is not None and not value <= trait.most:
        return f"{words}, the most is {amount(resource, trait.most)}"
    return ""
