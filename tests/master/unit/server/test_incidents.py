"""Incidents of a served job, and the evidence that is kept of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_master.inputs import UserCall
from holdfast_master.instructions import KeepEvidence, Reply
from holdfast_master.process import evidence_store
from holdfast_master.process.evidence_store import EvidenceStore
from holdfast_wire import evidence_file
from holdfast_wire import messages as wire
from masters.scripted_core import ScriptedCore, on
from masters.served import refusal_of, serve


def _evidence(name: str, stack: str = "File a.py", ranks: int = 1) -> KeepEvidence:
    found = tuple(wire.RankEvidence(rank=rank, stack=stack) for rank in range(ranks))
    return KeepEvidence(wire.IncidentEvidence(incident_id=name, odd_ranks=(0,), ranks=found))


Settled = Callable[..., EvidenceStore]


@pytest.fixture
def settled() -> Iterator[Settled]:
    """Return a function that makes a store and waits until it has written what it was given."""
    made: list[EvidenceStore] = []

    def make(directory: Path | None, *kept: KeepEvidence) -> EvidenceStore:
        found = EvidenceStore(directory, f"writer{len(made)}")
        made.append(found)
        for one in kept:
            found.keep(one)
        found._thread.submit(lambda: None).result(10.0)
        return found

    yield make
    for each in made:
        each.close()


async def test_an_incident_is_served_with_the_evidence_of_its_ranks(tmp_path: Path) -> None:
    """In several answers where one message has no room for all stacks."""
    many = _evidence("i1.2", os.urandom(30_000).hex(), ranks=120)
    script = on(UserCall, lambda event: [many, Reply(event.request_id, wire.StopJobResponse())])
    async with serve(tmp_path, ScriptedCore(script)) as served:
        assert (await served.ask("ListIncidents", wire.ListIncidentsRequest())).with_evidence == ()
        await served.ask("StopJob", wire.StopJobRequest())
        listed = await served.ask("ListIncidents", wire.ListIncidentsRequest())
        assert [one.id for one in listed.incidents] == ["i1.1", "i1.2"]
        assert listed.with_evidence == ("i1.2",)
        ranks: list[wire.RankEvidence] = []
        more = True
        while more:
            asked = wire.GetIncidentRequest(incident_id="i1.2", skip_ranks=len(ranks))
            page = await served.ask("GetIncident", asked)
            ranks += page.evidence.ranks
            more = page.more
        assert tuple(ranks) == many.evidence.ranks


async def test_an_incident_without_evidence_says_why(tmp_path: Path) -> None:
    """A crash has none; a hang's may have been removed; an unknown id is refused."""
    async with serve(tmp_path, ScriptedCore()) as served:
        crash = await served.ask("GetIncident", wire.GetIncidentRequest(incident_id="i1.1"))
        assert "only hangs have stacks" in crash.evidence_missing
        hang = await served.ask("GetIncident", wire.GetIncidentRequest(incident_id="i1.2"))
        assert "not kept any more" in hang.evidence_missing
        refusal = await refusal_of(
            served.ask("GetIncident", wire.GetIncidentRequest(incident_id="../../etc"))
        )
        assert (refusal.reason, "'../../etc'" in refusal.text) == ("NO_INCIDENT", True)


@pytest.mark.parametrize("on_disk", [True, False])
async def test_a_store_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: Settled, *, on_disk: bool
) -> None:
    """Beyond the number, then beyond the bytes, the oldest go; what is read is what was kept."""
    monkeypatch.setattr(evidence_store, "MOST_INCIDENTS", 3)
    directory = tmp_path / "evidence" if on_disk else None
    names = [f"i1.{number}" for number in range(1, 6)]
    kept = settled(directory, *map(_evidence, names))
    assert kept.known() == ("i1.3", "i1.4", "i1.5")
    assert await kept.read("i1.5") == _evidence("i1.5").evidence
    assert await kept.read("i1.1") is None
    monkeypatch.setattr(evidence_store, "MOST_BYTES", 1)
    kept.keep(_evidence("i1.6"))
    kept.close()
    assert kept.known() == ("i1.6",)
    if directory is not None:
        assert [path.name for path in directory.iterdir()] == ["i1.6.evidence"]


async def test_a_successor_has_what_the_master_before_kept(
    tmp_path: Path, settled: Settled
) -> None:
    """Half a file that a killed master left is neither shown nor kept for ever."""
    directory = tmp_path / "evidence"
    settled(directory, _evidence("i1.1"))
    (directory / "i1.2.evidence-w.part").write_bytes(b"half")
    (directory / "i1.3.evidence").write_bytes(b"damaged")
    after = settled(directory)
    assert set(after.known()) == {"i1.1", "i1.3"}
    assert await after.read("i1.1") == _evidence("i1.1").evidence
    with pytest.raises(evidence_file.EvidenceFileError, match=r"i1.3.evidence cannot be used"):
        await after.read("i1.3")
    assert await after.read("../i1.1") is None
    settled(directory, _evidence("i2.1"))
    assert not list(directory.glob("*.part"))


async def test_a_disk_that_takes_nothing_loses_no_more_than_the_file(
    tmp_path: Path, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, and the master still shows it."""
    (tmp_path / "evidence").write_text("in the way")
    with caplog.at_level(logging.ERROR):
        kept = settled(tmp_path / "evidence", _evidence("i1.1"))
    assert "in memory only" in caplog.text
    assert kept.known() == ("i1.1",)
    assert await kept.read("i1.1") == _evidence("i1.1").evidence
