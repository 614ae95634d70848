"""Objects by a job's name, as far as the watch has told."""

from __future__ import annotations

import copy
from typing import Any

from holdfast_operator.job_cache import JobCache

KEY = ("team", "t")


def _body(uid: str, second: int = 0, version: int = 1) -> dict[str, Any]:
    created = f"2026-01-01T00:00:{second:02}Z"
    return {"metadata": {"uid": uid, "creationTimestamp": created, "resourceVersion": version}}


def test_the_end_of_an_older_object_leaves_the_newer_one() -> None:
    """It may be told last: each object's events come by themselves."""
    jobs = JobCache()
    jobs.add(KEY, _body("old"))
    jobs.add(KEY, _body("new", 5))
    jobs.add(KEY, _body("old", version=2))
    assert jobs.newest(KEY) == _body("new", 5)
    jobs.delete(KEY, "old")
    assert jobs.newest(KEY) == _body("new", 5)
    jobs.delete(KEY, "new")
    assert jobs.newest(KEY) is None
    assert jobs.bodies(KEY) == {}


def test_of_two_made_in_one_second_the_later_seen_counts() -> None:
    """Times of the API server are whole seconds; both are known until one is said to be gone."""
    jobs = JobCache()
    jobs.add(KEY, _body("old"))
    jobs.add(KEY, _body("new"))
    jobs.add(KEY, _body("old", version=2))
    assert jobs.newest(KEY) == _body("new")
    assert set(jobs.bodies(KEY)) == {"old", "new"}
    jobs.delete(KEY, "new")
    assert jobs.newest(KEY) == _body("old", version=2)


def test_an_answer_that_comes_after_the_end_brings_nothing_back() -> None:
    """The watch can be faster than the answer to a request."""
    jobs = JobCache()
    first, second = _body("a"), _body("a", version=2)
    jobs.add(KEY, first)
    jobs.update(KEY, second, first)
    assert jobs.newest(KEY) == second
    edited = _body("a", version=4)
    jobs.add(KEY, edited)
    jobs.update(KEY, _body("a", version=3), second)
    assert jobs.newest(KEY) == edited
    jobs.delete(KEY, "a")
    jobs.update(KEY, _body("a", version=5), edited)
    assert jobs.newest(KEY) is None


def test_a_late_event_of_an_older_version_changes_nothing() -> None:
    """Answers to requests come ahead of the watch."""
    jobs = JobCache()
    new = {"metadata": {"uid": "u", "generation": 2, "resourceVersion": "12"}}
    old = {"metadata": {"uid": "u", "generation": 1, "resourceVersion": "9"}}
    assert jobs.add(KEY, new)
    assert not jobs.add(KEY, old)
    assert jobs.bodies(KEY) == {"u": new}


def test_each_job_is_seen_with_its_phase_and_the_reason_of_its_failure() -> None:
    """A condition that is not true any more, or not yet, is no reason."""
    jobs = JobCache()
    failed = [
        {"type": "Suspended", "status": "False", "reason": "Resumed"},
        {"type": "Failed", "status": "True", "reason": "NoProgress"},
    ]
    running = [{"type": "Failed", "status": "False", "reason": "Stale"}]
    jobs.add(KEY, {**_body("a"), "status": {"phase": "Failed", "conditions": failed}})
    jobs.add(("team", "u"), {**_body("b"), "status": {"phase": "Running", "conditions": running}})
    jobs.add(("team", "v"), _body("c"))
    assert jobs.seen() == [
        (KEY, "Failed", "NoProgress"),
        (("team", "u"), "Running", ""),
        (("team", "v"), "Pending", ""),
    ]


def test_the_event_of_a_write_whose_answer_is_known_is_no_news() -> None:
    """Each write of the operator's own comes back as an event: it leads to no second look."""
    jobs = JobCache()
    first, answer = _body("a"), _body("a", version=2)
    assert jobs.add(KEY, first)
    jobs.update(KEY, answer, first)
    assert not jobs.add(KEY, _body("a", version=2))
    assert jobs.newest(KEY) is answer
    assert jobs.add(KEY, _body("a", version=3))


def test_jobs_that_go_on_are_counted() -> None:
    """Not those that have ended, nor those that are gone: they have no master to talk to."""
    jobs = JobCache()
    jobs.add(KEY, _body("a"))
    jobs.add(("team", "u"), _body("b"))
    assert jobs.going == 2
    jobs.add(KEY, _body("a", version=2) | {"status": {"completionTime": "2026-01-01T00:00:00Z"}})
    assert jobs.going == 1
    jobs.delete(("team", "u"), "b")
    assert jobs.going == 0


def test_versions_of_an_object_share_a_spec_that_did_not_change() -> None:
    """Each write of a status brings a whole object anew, and its spec is most of it."""
    jobs = JobCache()
    spec = {"replicas": 2, "worker": {"template": {}}}
    jobs.add(KEY, {**_body("a"), "spec": spec})
    status = {"phase": "Running"}
    jobs.add(KEY, {**_body("a", version=2), "spec": copy.deepcopy(spec), "status": status})
    kept = jobs.newest(KEY)
    assert kept is not None
    assert kept["spec"] is spec
    assert (kept["metadata"]["resourceVersion"], kept["status"]) == (2, status)
    edited = {**spec, "replicas": 3}
    jobs.add(KEY, {**_body("a", version=3), "spec": edited})
    assert jobs.newest(KEY) == {**_body("a", version=3), "spec": edited}
