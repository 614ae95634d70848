"""The network between agents and master breaks, is slow to come back, or works in one direction."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.loop_script import loop_script
from holdfast_cli.chaos.proxy import Proxy
from holdfast_wire.messages import BudgetKind, JobPhase, JobStatus
from jobs.local_job import RunningJob, elastic_job

pytestmark = [pytest.mark.train, pytest.mark.deadline]

NODES = 4
SHORT_SECONDS = 2.5
"""Half of what the master takes for silence."""
LONG_SECONDS = 6.5
"""More than that."""


class Network:
    """A job whose agents reach their master through proxies, and the steps that its ranks write."""

    def __init__(self, directory: Path, proxies: list[Proxy]) -> None:
        self.proxies = proxies
        self._steps = directory / "steps"
        script = loop_script(
            directory, "--steps=1000000", "--step-seconds=0.1", "--steps-per-round=10000"
        )
        file = elastic_job(
            "far", script, model=False, through=proxies, replicas=len(proxies), minReplicas=1
        )
        self.job = RunningJob(file, directory)

    def settled(self, size: int, after: int = -1) -> JobStatus:
        """Wait until a world of `size` above round `after` trains."""

        def there() -> JobStatus | None:
            status = self.job.status()
            right = status.world_size == size and status.round > after
            return status if right and status.phase is JobPhase.TRAINING else None

        status = self.job.wait_for(f"a world of {size}", there)
        assert status is not None
        return status

    def lines(self) -> list[tuple[int, int, int]]:
        """Return round, step and rank of every line that a rank wrote."""
        texts = [file.read_text().splitlines() for file in self._steps.glob("rank-*.jsonl")]
        lines = [line for text in texts for line in map(json.loads, text)]
        return [(line["round"], line["step"], line["rank"]) for line in lines]

    def steps_in(self, round_number: int) -> int:
        """Return how many lines a round has."""
        return sum(at == round_number for at, _, _ in self.lines())

    @contextlib.contextmanager
    def held(self, *nodes: int, up: bool = True, down: bool = True) -> Iterator[None]:
        """Hold back what these nodes and the master send to each other."""
        for node in nodes:
            self.proxies[node].hold(up=up, down=down)
        try:
            yield
        finally:
            for node in nodes:
                self.proxies[node].heal()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Four nodes that train, each behind a proxy of its own; whole again after each test."""
    directory = tmp_path_factory.mktemp("network")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("HOLDFAST_STEP_LOG", str(directory / "steps"))
        made: list[Network] = []
        proxies = [Proxy(lambda: _address(made)) for _ in range(NODES)]
        for proxy in proxies:
            stack.callback(proxy.close)
        made.append(Network(directory, proxies))
        stack.enter_context(made[0].job)
        yield made[0]


def _address(made: list[Network]) -> tuple[str, int] | None:
    return made[0].job.address() if made else None


@pytest.mark.extended(
    "a cut that is shorter than those beside it",
    held_by=[
        "recovery/test_connection.py::test_a_node_that_is_heard_keeps_its_place",
        "master/unit/policies/test_liveness.py::test_judgement",
        "master/unit/job/test_node_losses.py::test_a_longer_break_is_news_and_nothing_more",
    ],
)
def test_what_is_shorter_than_the_silence_limit_changes_nothing(network: Network) -> None:
    """A reset, a refusal, and partitions of one, half, one direction: same round and ranks."""
    before = network.settled(NODES)
    job = network.job
    ranks = {rank: job.rank_pid(rank) for rank in range(NODES)}
    connections, seen = sum(proxy.accepted for proxy in network.proxies), job.newest_event()
    for proxy in network.proxies:
        proxy.refuse()
    threading.Event().wait(0.2)  # the length of each cut is what is tested
    for proxy in network.proxies:
        proxy.heal()
    for nodes, up, down in (((1,), True, True), ((0, 1), True, False), ((2, 3), False, True)):
        network.job.wait_for("every node", lambda: _all_ready(network))
        with network.held(*nodes, up=up, down=down):
            threading.Event().wait(SHORT_SECONDS)
    after = job.wait_step(before.step + 80)
    assert sum(proxy.accepted for proxy in network.proxies) >= connections + NODES
    assert after.round == before.round, job.evidence()
    assert {rank: job.rank_pid(rank) for rank in range(NODES)} == ranks
    assert all(event.reason != "NodeLost" for event in job.events(seen))
    assert after.budgets == before.budgets


def _all_ready(network: Network) -> bool:
    nodes = network.job.nodes().values()
    return len(nodes) == NODES and all(node.silent_seconds < 1.0 for node in nodes)


def test_half_that_is_cut_off_gives_way_to_the_half_that_is_not(network: Network) -> None:
    """The reachable two go on alone; the others end their old ranks and come back afterwards."""
    before = network.settled(NODES)
    old = {rank: network.job.rank_pid(rank) for rank in range(NODES)}
    with network.held(2, 3):
        small = network.settled(2, before.round)
        # Masterless agents ask their peers: nobody of the old round may write when the new runs.
        network.job.wait_step(small.step + 20, round_above=before.round)
        assert not any(Path(f"/proc/{pid}").exists() for pid in old.values())
        done = network.steps_in(before.round)
        network.job.wait_step(small.step + 30, round_above=before.round)
        assert network.steps_in(before.round) == done
    network.settled(NODES, small.round)


def test_a_master_that_reaches_nobody_lets_them_train(network: Network) -> None:
    """All are cut off for longer than the silence limit: they train on, and are one world again."""
    before, seen = network.settled(NODES), network.job.newest_event()
    with network.held(*range(NODES)):
        network.job.wait_event("NodeLost", after=seen, timeout_s=60.0)
        done = network.steps_in(before.round)
        network.job.wait_for("steps", lambda: network.steps_in(before.round) > done + 8 * NODES)
    after = network.settled(NODES)
    assert after.round <= before.round + 2, network.job.evidence()


def test_a_node_that_is_heard_keeps_its_place(network: Network) -> None:
    """It hears nothing for longer than the silence limit: the same round, ranks and budgets."""
    used = network.job.charged()
    before, seen = network.settled(NODES), network.job.newest_event()
    ranks = {rank: network.job.rank_pid(rank) for rank in range(NODES)}
    with network.held(1, up=False):
        threading.Event().wait(LONG_SECONDS)  # the length of the cut is what is tested
        held = network.job.status()
    after = network.job.wait_step(held.step + 10)
    network.job.wait_for("every node", lambda: _all_ready(network))
    assert after.round == before.round, network.job.evidence()
    assert {rank: network.job.rank_pid(rank) for rank in range(NODES)} == ranks
    assert all(event.reason != "NodeLost" for event in network.job.events(seen))
    assert network.job.charged() == used


def _without(network: Network, *nodes: int, down: bool) -> None:
    """Hold back what these nodes say, and what they are told: the others go on alone meanwhile.

    One smaller round, nobody of the old one writes any more, and one whole round afterwards.
    """
    before, begin = network.settled(NODES), time.monotonic()
    old = {rank: network.job.rank_pid(rank) for rank in range(NODES)}
    with network.held(*nodes, down=down):
        small = network.settled(NODES - len(nodes), before.round)
        network.job.wait_for(
            "the ends of the old ranks, and the time to pass",
            lambda: (
                time.monotonic() > begin + LONG_SECONDS
                and not any(Path(f"/proc/{pid}").exists() for pid in old.values())
            ),
        )
        done = network.steps_in(before.round)
        network.job.wait_step(network.job.status().step + 10, round_above=before.round)
        assert network.steps_in(before.round) == done
    after = network.settled(NODES, small.round)
    assert (small.round, after.round) == (before.round + 1, before.round + 2), (
        network.job.evidence()
    )


@pytest.mark.extended(
    "three cuts more, each as long as the silence limit",
    held_by=[
        "recovery/test_connection.py::test_half_that_is_cut_off_gives_way_to_the_half_that_is_not",
        "recovery/test_connection.py::test_a_node_that_is_heard_keeps_its_place",
        "simulation/test_seeds.py::test_a_job_survives_whatever_happens",
        "master/unit/job/test_node_losses.py::test_silence_without_evidence_takes_the_whole_limit",
    ],
)
def test_nodes_that_are_not_heard_are_lost_once(network: Network) -> None:
    """One cut off, one and then half of which nothing arrives: a failure each, nothing doubled."""
    used = network.job.charged()
    network.settled(NODES)
    _without(network, 1, down=True)
    _without(network, 3, down=False)
    _without(network, 0, 1, down=False)
    network.settled(NODES)
    expected = {**used, BudgetKind.FAILURES: used[BudgetKind.FAILURES] + 3}
    assert network.job.charged() == expected, network.job.evidence()
    lines = network.lines()
    assert len(lines) == len(set(lines))
