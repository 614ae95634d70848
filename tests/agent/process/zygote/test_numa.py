"""--numa-binding: torch names the CPUs in a process that is thrown away, the worker binds itself.

A machine with accelerators is rare among test machines, so torch's part is played by a module of
the same name and signature; its refusal without an accelerator is tested with the real one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.zygote_driver import Driver, agent, ready
from holdfast_agent.zygote.protocol import Failure, RoundDead, Spawn

BINDING = """
import enum, os, dataclasses
from pathlib import Path

class AffinityMode(str, enum.Enum):
    NODE = "node"

@dataclasses.dataclass(frozen=True)
class NumaOptions:
    affinity_mode: AffinityMode

def _get_logical_cpus_to_bind_to(*, {device}, numa_options):
    with Path(__file__).with_name("asked").open("a") as file:
        print({device}, os.getpid(), file=file)
    return {{sorted(os.sched_getaffinity(0))[{device}]}}
"""

SHOW = "import os, sys; print(sorted(os.sched_getaffinity(0)), 'torch' in sys.modules)"


@pytest.fixture(params=["device_index", "gpu_index"])
def fake_torch(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A torch that knows which CPU stands next to which device, of either generation."""
    folder = tmp_path / "fake" / "torch" / "numa"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder.parent / "__init__.py").touch()
    (folder / "binding.py").write_text(BINDING.format(device=request.param))
    return folder


@pytest.fixture
def driver(fake_torch: Path, tmp_path: Path) -> Iterator[Driver]:
    """An agent whose zygote asks that torch."""
    with agent(tmp_path, environment={"PYTHONPATH": str(fake_torch.parents[1])}) as running:
        yield ready(running)


def test_a_worker_is_bound_to_the_cpus_of_its_device(driver: Driver, fake_torch: Path) -> None:
    """Asked once, in another process: neither zygote nor worker has touched the device."""
    cpu = min(os.sched_getaffinity(0))
    for _ in range(2):
        assert driver.run(SHOW, numa="node").out == f"[{cpu}] False\n"
    (line,) = (fake_torch / "asked").read_text().splitlines()
    assert line.split()[0] == "0"
    assert int(line.split()[1]) not in driver.alive()


def test_an_unknown_mode_is_refused(driver: Driver) -> None:
    """The round fails with torch's own words, and the zygote goes on."""
    rank = driver.rank(argv=(driver.script(SHOW),), numa="sideways")
    driver.send(Spawn(round=1, ranks=(rank,)))
    assert "'sideways' is not a valid AffinityMode" in driver.wait(Failure).text
    driver.wait(RoundDead)
    driver.round = 1
    assert driver.run("print('on')").out == "on\n"
