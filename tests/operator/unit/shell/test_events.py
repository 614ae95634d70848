"""Kubernetes events made of the news of a job."""

from __future__ import annotations

import dataclasses

from holdfast_operator.events.news import (
    BURST,
    RATE,
    WAITING,
    WINDOW_US,
    Digest,
    NewsItem,
    from_master,
    transitions,
)
from holdfast_wire.messages import EventSeverity, JobEvent


def _told(number: int, reason: str = "NodeLost", text: str = "") -> NewsItem:
    return NewsItem(
        reason=reason,
        text=text or f"node {number}",
        warning=True,
        at_us=number * 1_000_000,
        sequence=number,
    )


def _write(digest: Digest, now: float) -> list[tuple[str, int]]:
    written = []
    for line in digest.due(now):
        line.written = line.count
        written.append((line.text, line.count))
    return written


def test_the_same_news_is_one_event_with_a_count() -> None:
    """A repeat raises its event's count. Other news is an event of its own."""
    digest = Digest("gpt", "uid", 0.0)
    digest.take([_told(1, text="a"), _told(2, text="a"), _told(3, text="b")])
    assert _write(digest, 0.0) == [("a", 2), ("b", 1)]
    digest.take([_told(4, text="a")])
    assert _write(digest, 1.0) == [("a", 3)]
    assert digest.idle


def test_news_that_a_master_tells_again_are_not_counted_again() -> None:
    """A broken stream begins with a snapshot of what was told before."""
    digest = Digest("gpt", "uid", 0.0)
    news = [_told(number) for number in range(10)]
    digest.take(news)
    _write(digest, 0.0)
    digest.take([*news, _told(11)])
    assert _write(digest, 1.0) == [("node 11", 1)]


def test_two_of_one_instant_are_two() -> None:
    """A master decides several things at one time."""
    digest = Digest("gpt", "uid", 0.0)
    first = _told(5)
    digest.take([first, dataclasses.replace(first, sequence=6)])
    assert _write(digest, 0.0) == [("node 5", 2)]


def test_a_repetition_after_the_window_is_a_new_event() -> None:
    """The API server forgets an event after an hour; a count on it would be lost."""
    digest = Digest("gpt", "uid", 0.0)
    digest.take([_told(1, text="a")])
    (first,) = digest.due(0.0)
    first.written = 1
    late = dataclasses.replace(_told(2, text="a"), at_us=first.last_us + WINDOW_US + 1)
    digest.take([late])
    (second,) = digest.due(0.0)
    assert (second.count, second.written, second.name != first.name) == (1, 0, True)


def test_a_job_that_says_much_is_heard_later_and_in_fewer_words() -> None:
    """A storm of 1,000 different news costs no more than the allowance; every one is counted."""
    digest = Digest("gpt", "uid", 0.0)
    written = []
    for second in range(10):
        digest.take([_told(100 * second + number) for number in range(100)])
        written += _write(digest, float(second))
    assert len(written) <= BURST + 1 + 10 * RATE
    now = 9.0
    while (wait := digest.wait(now)) is not None:
        assert 0.0 < wait <= 1 / RATE
        now += wait
        written += _write(digest, now)
    assert now <= (WAITING + 3) / RATE
    assert sum(dict(written).values()) == 1000


def test_names_are_those_of_the_news() -> None:
    """Whoever tells the same of the same job again makes the same name; of another, another."""
    names = []
    for uid in ("one", "one", "two"):
        digest = Digest("gpt", uid, 0.0)
        digest.take([_told(1)])
        names.append(next(digest.due(0.0)).name)
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("gpt.")


def test_a_masters_event_names_its_node() -> None:
    """Kubernetes events have no field for a node rank; what names it already says it once."""
    event = JobEvent(
        sequence=7, unix_time=1.5, severity=EventSeverity.ERROR, reason="R", text="lost", node="3"
    )
    assert from_master(event) == NewsItem(
        reason="R", text="node 3: lost", warning=True, at_us=1_500_000, sequence=7
    )
    for text, told in (
        ("node 3 joined", "node 3 joined"),
        ("beside node 31", "node 3: beside node 31"),
    ):
        assert from_master(dataclasses.replace(event, text=text)).text == told


def test_conditions_are_told_when_they_change() -> None:
    """The end of a job, and that it was suspended; not what the master tells itself."""

    def status(**conditions: str) -> dict[str, list[dict[str, str]]]:
        found = [
            {"type": kind, "status": held, "reason": f"{kind}Why", "message": ""}
            for kind, held in conditions.items()
        ]
        return {"conditions": found}

    def told(
        before: dict[str, list[dict[str, str]]], after: dict[str, list[dict[str, str]]]
    ) -> str:
        return " ".join(one.reason for one in transitions(before, after, 1.0))

    assert told({}, status(Suspended="False", MasterReady="False")) == ""
    assert told({}, status(Suspended="True")) == "SuspendedWhy"
    assert told(status(Suspended="True"), status(Suspended="False")) == "SuspendedWhy"
    assert told(status(Suspended="False"), status(Suspended="False", Failed="True")) == "FailedWhy"
    assert told(status(Failed="True"), status(Failed="True")) == ""
