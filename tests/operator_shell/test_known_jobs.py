"""Which object has the name of a job, as far as the watch has told."""

from __future__ import annotations

from typing import Any

from holdfast_operator.known_jobs import KnownJobs

KEY = ("team", "t")


def _body(uid: str, second: int = 0, version: int = 1) -> dict[str, Any]:
    created = f"2026-01-01T00:00:{second:02}Z"
    return {"metadata": {"uid": uid, "creationTimestamp": created, "resourceVersion": version}}


def test_the_end_of_an_older_object_leaves_the_newer_one() -> None:
    """It may be told last: each object's events come by themselves."""
    jobs = KnownJobs()
    jobs.take(KEY, _body("old"))
    jobs.take(KEY, _body("new", 5))
    jobs.take(KEY, _body("old", version=2))
    assert jobs.newest(KEY) == _body("new", 5)
    jobs.drop(KEY, "old")
    assert jobs.newest(KEY) == _body("new", 5)
    jobs.drop(KEY, "new")
    assert jobs.newest(KEY) is None
    assert jobs.uids(KEY) == set()


def test_of_two_made_in_one_second_the_later_seen_counts() -> None:
    """Times of the API server are whole seconds; both are known until one is said to be gone."""
    jobs = KnownJobs()
    jobs.take(KEY, _body("old"))
    jobs.take(KEY, _body("new"))
    jobs.take(KEY, _body("old", version=2))
    assert jobs.newest(KEY) == _body("new")
    assert jobs.uids(KEY) == {"old", "new"}
    jobs.drop(KEY, "new")
    assert jobs.newest(KEY) == _body("old", version=2)


def test_an_answer_that_comes_after_the_end_brings_nothing_back() -> None:
    """The watch can be faster than the answer to a request."""
    jobs = KnownJobs()
    first, second = _body("a"), _body("a", version=2)
    jobs.take(KEY, first)
    jobs.renew(KEY, second, first)
    assert jobs.newest(KEY) == second
    edited = _body("a", version=4)
    jobs.take(KEY, edited)
    jobs.renew(KEY, _body("a", version=3), second)
    assert jobs.newest(KEY) == edited
    jobs.drop(KEY, "a")
    jobs.renew(KEY, _body("a", version=5), edited)
    assert jobs.newest(KEY) is None
