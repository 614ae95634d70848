"""The work queue, the token bucket, the settings and the written status."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from pathlib import Path

import pytest

from holdfast_operator.credentials import JobCredentials
from holdfast_operator.kube.rate_limit import TokenBucket
from holdfast_operator.pods.names import Owner
from holdfast_operator.settings import SettingsError, read_settings
from holdfast_operator.state.status import WrittenStatus
from holdfast_operator.work_queue import WorkQueue
from holdfast_wire import keys
from holdfast_wire.authority import Credentials

NEEDED = {
    "HOLDFAST_OPERATOR_NAMESPACE": "holdfast",
    "HOLDFAST_OPERATOR_IDENTITY": "a",
    "HOLDFAST_OPERATOR_IMAGE": "holdfast:1",
}


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    """Ten events are one look."""
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(10):
        queue.add("a")
    assert await queue.take() == "a"
    assert queue.depth == 0


async def test_a_key_that_changes_while_it_is_looked_at_comes_again() -> None:
    """Never two looks at once, and no event lost."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    assert queue.depth == 0
    queue.done("a")
    assert queue.depth == 1


async def test_failures_wait_longer_and_longer() -> None:
    """A job that cannot be looked at does not keep the API server busy."""
    queue: WorkQueue[str] = WorkQueue()
    waits = []
    for _ in range(20):
        queue.add("a")
        await queue.take()
        waits.append(queue.failed("a"))
    assert waits[0] < 0.2
    assert waits[6] > 3
    assert max(waits) <= 75
    queue.forget("a")


async def test_the_sooner_of_two_delays_counts() -> None:
    """A look that is due soon is not put off by one that is due later."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60.0)
    queue.add_after("a", 0.0)
    queue.add_after("a", 60.0)
    assert await asyncio.wait_for(queue.take(), 5.0) == "a"
    queue.forget("a")


def test_a_burst_is_free_and_then_the_rate_holds() -> None:
    """After the burst each request waits a little longer."""
    bucket = TokenBucket(rate=10.0, burst=2.0, tokens=2.0)
    waits = [bucket.take(0.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.0, 0.1, 0.2])
    assert bucket.take(1.0) == 0.0


def test_settings_are_read_with_their_defaults() -> None:
    """The environment gives the required settings. The others have defaults."""
    settings = read_settings({**NEEDED, "HOLDFAST_OPERATOR_WORKERS": "3", "PATH": "/bin"})
    assert (settings.namespace, settings.workers) == ("holdfast", 3)
    assert settings.watch_namespace.scopes == ("",), "all namespaces"
    assert settings.job_ingress.rules is None, "jobs have no NetworkPolicy"


def test_several_namespaces_are_named_by_a_list() -> None:
    """Each counts once, however often it stands there."""
    given = {"HOLDFAST_OPERATOR_WATCH_NAMESPACE": "team-a,b,team-a"}
    assert read_settings({**NEEDED, **given}).watch_namespace.scopes == ("team-a", "b")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"HOLDFAST_OPERATOR_WORKERS": "many"}, "is no int"),
        ({"HOLDFAST_OPERATOR_LOG_LEVEL": "loud"}, "one of debug, info, warning, error"),
        ({"HOLDFAST_OPERATOR_WORKER": "3"}, "HOLDFAST_OPERATOR_WORKERS"),
        ({"HOLDFAST_OPERATOR_MASTER_POD": "[]"}, "no JSON object with fields of a pod"),
        ({"HOLDFAST_OPERATOR_WATCH_NAMESPACE": "a,,b"}, "'' cannot be the name of a namespace"),
        ({"HOLDFAST_OPERATOR_WATCH_NAMESPACE": "Team"}, "'Team' cannot be the name"),
        ({"HOLDFAST_OPERATOR_JOB_INGRESS": "{}"}, "no JSON array of ingress rules"),
        ({"HOLDFAST_OPERATOR_JOB_INGRESS": "[1]"}, "no JSON array of objects"),
        (
            {"HOLDFAST_OPERATOR_MASTER_POD": '{"node": "n1"}'},
            r"node is 'n1'; known are annotations",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(change: dict[str, str], said: str) -> None:
    """A misspelt variable would otherwise be ignored for ever."""
    with pytest.raises(SettingsError, match=said):
        read_settings({**NEEDED, **change})


def test_a_field_of_masters_that_a_chart_s_user_took_away_is_none() -> None:
    """Helm merges maps, so `null` is how one says: no limits."""
    text = '{"resources": null, "nodeSelector": {"disk": "ssd"}}'
    read = read_settings({**NEEDED, "HOLDFAST_OPERATOR_MASTER_POD": text})
    assert read.master_pod.fields == {"nodeSelector": {"disk": "ssd"}}


def test_a_missing_setting_is_named() -> None:
    """The error says which."""
    with pytest.raises(SettingsError, match="HOLDFAST_OPERATOR_IMAGE"):
        read_settings({k: v for k, v in NEEDED.items() if not k.endswith("IMAGE")})


def test_files_that_could_not_be_written_are_written_by_the_next_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that was full for a moment must not keep the operator from the master for days."""
    owner = Owner(name="t", namespace="team", uid="u-1")
    credentials = JobCredentials(bytes(32), owner, dt.timedelta(days=90))

    def full(_credentials: Credentials, _directory: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Credentials, "write", full)
        with pytest.raises(OSError, match="No space"):
            credentials.operator_folder()
    assert (credentials.operator_folder() / keys.CERT_FILE).exists()
    credentials.close()


def test_conditions_of_the_status_and_of_the_last_plan_are_kept_once() -> None:
    """Those of a plan count until they are written; then they are the same."""
    written = WrittenStatus({"conditions": [{"type": "Healthy", "status": "True"}]})
    planned = [{"type": "Healthy", "status": "False"}]
    written.planned(planned)
    assert written.for_planner()["conditions"] is planned
    answer = {"conditions": copy.deepcopy(planned)}
    written.written(answer)
    assert written.conditions is answer["conditions"]
