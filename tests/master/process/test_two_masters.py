"""Two masters of one job at once: the older one was stopped and wakes up while its heir serves."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agents.scripted_agent import ScriptedAgent
from holdfast_cli.chaos.proxy import Proxy
from holdfast_master.journal.reader import join
from holdfast_master.journal.segments import read_segments
from holdfast_wire import codec, errors
from holdfast_wire.identity import Identity
from holdfast_wire.messages import JobPhase, WatchJobRequest
from masters.master_process import SPEC, MasterProcess, master_process
from masters.worlds import agents_of, events, phase

pytestmark = pytest.mark.slow  # each starts masters, which takes a core half a second

EXIT_ZOMBIE = 3


class Pair:
    """A master whose agents come through a proxy, as through a Service, and its successor."""

    def __init__(self, directory: Path, *, journal: bool) -> None:
        self.directory = directory
        self.target = ("127.0.0.1", 0)
        self.settings: dict[str, object] = {"initial_spec": SPEC}
        if journal:
            self.settings["journal_dir"] = str(directory / "journal")

    @contextlib.contextmanager
    def run(self) -> Iterator[tuple[MasterProcess, MasterProcess, list[ScriptedAgent]]]:
        """Yield the woken zombie, its successor, and the agents, which the successor has."""
        with contextlib.ExitStack() as stack:
            proxy = stack.enter_context(contextlib.closing(Proxy(lambda: self.target)))
            old = stack.enter_context(master_process(self.directory, epoch=1, **self.settings))
            self.target = ("127.0.0.1", old.port)
            agents = stack.enter_context(agents_of(self.directory, proxy.port, (0, 1)))
            old.wait_for(lambda: phase(old) is JobPhase.TRAINING)
            old.process.send_signal(signal.SIGSTOP)
            new = stack.enter_context(master_process(self.directory, epoch=2, **self.settings))
            self.target = ("127.0.0.1", new.port)
            proxy.reset()
            for agent in agents:
                agent.wait_for(lambda agent=agent: agent.fence.epoch == 2)
            new.wait_for(lambda: phase(new) is JobPhase.TRAINING)
            old.process.send_signal(signal.SIGCONT)
            yield old, new, agents


def test_a_zombie_that_wakes_up_steps_down_and_disturbs_nobody(tmp_path: Path) -> None:
    """Nobody talks to it any more: it sees its successor's journal, and exits with 3."""
    with Pair(tmp_path, journal=True).run() as (old, new, agents):
        assert old.process.wait(timeout=10) == EXIT_ZOMBIE
        assert old.lines("stepping down: a master of epoch 2 writes")
        assert [len(agent.assignments) for agent in agents] == [1, 1]
        assert phase(new) is JobPhase.TRAINING
        assert not {"NodeLost", "IncidentOpened"} & {event.reason for event in events(new)}
        known = [event.sequence for event in events(new)]
        assert new.stop() == 0
    history = join(read_segments(tmp_path / "journal"), "j1")
    assert [past.epoch for past in history.masters][-1] == 2
    assert known == sorted(set(known))


def test_a_zombie_without_a_journal_is_told_by_the_first_agent(tmp_path: Path) -> None:
    """An agent that finds its way back to the old address says there which epoch it obeys."""
    pair = Pair(tmp_path, journal=False)
    with pair.run() as (old, _new, agents):
        with contextlib.closing(ScriptedAgent(tmp_path, old.port, 1)) as astray:
            astray.wait_for(lambda: astray.connections)
            astray.fence = agents[1].fence
            assert old.process.wait(timeout=20) == EXIT_ZOMBIE
        assert agents[0].connections == 2


@pytest.mark.parametrize("journal", [True, False])
def test_a_watcher_of_a_newer_epoch_is_sent_away_by_a_zombie(
    tmp_path: Path, *, journal: bool
) -> None:
    """Its token says that a newer master exists; what the zombie knows would be old news."""
    settings: dict[str, object] = {"initial_spec": SPEC}
    if journal:
        settings["journal_dir"] = str(tmp_path / "journal")
    with (
        master_process(tmp_path, epoch=1, **settings) as old,
        old.channel(Identity("j1", "user")) as made,
    ):
        stub: Any = made.unary_stream("/holdfast.v1.JobService/WatchJob")
        request = codec.encode(WatchJobRequest(resume_token="2:newer:7"))
        with pytest.raises(grpc.RpcError) as caught:
            list(stub(request, timeout=10))
        assert errors.read(caught.value).reason == "MASTER_SUPERSEDED"
