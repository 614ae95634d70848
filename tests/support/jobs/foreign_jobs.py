"""Sample jobs of other operators, each in a file of its own, and the flags of their launchers."""

from __future__ import annotations

from typing import Final

from house.repository import ROOT

_FOLDER: Final = ROOT / "tests/cli/unit/convert/samples"
SAMPLES: Final = sorted(_FOLDER.glob("*.yaml"))
"""Jobs that have a counterpart here."""
REFUSED: Final = sorted((_FOLDER / "refused").glob("*.yaml"))
"""Jobs that have none; the first line of each says why, as the command does."""
assert SAMPLES, _FOLDER
assert REFUSED, _FOLDER
DLROVER_FLAGS: Final = (
    *(("--precheck", "1"), ("--node_unit", "2"), ("--node-unit", "2")),
    *(("--auto_config",), ("--auto-config",), ("--auto_tunning",), ("--auto-tunning",)),
    *(("--exclude-straggler",), ("--exclude_straggler",)),
    *(("--save_at_breakpoint",), ("--save-at-breakpoint",)),
    *(("--accelerator", "nvidia.com/gpu"), ("--training_port", "60000")),
    *(("--training-port", "60000"), ("--numa-affinity",), ("--numa_affinity",)),
    *(("--membind-policy", "preferred"), ("--membind_policy", "preferred")),
    *(("--network-check",), ("--network_check",)),
    *(("--comm-perf-test",), ("--comm_perf_test",), ("--ucp_device_type", "cpu")),
)
"""Every flag that dlrover-run adds to torchrun's, in each spelling, with a value if it takes one:
`parse_args` of dlrover/trainer/torch/elastic_run.py at 7c3e96481."""
