"""Answers of metadata services and notice files: their meaning, and which of them are news."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast_agent.config.notice_sources import parse
from holdfast_agent.errors import InputError
from holdfast_agent.policies import notices
from holdfast_agent.policies.master_messages import Statements
from holdfast_agent.policies.notices import Notice
from holdfast_wire.messages import Fence, NoticeKind, NoticeReceived

TAKEN = (NoticeKind.PREEMPTION, False)
ENDS = (NoticeKind.MAINTENANCE, False)
PAUSES = (NoticeKind.MAINTENANCE, True)
RISK = (NoticeKind.PREEMPTION, True)
SCHEDULED = 1474309787.0
"""Mon, 19 Sep 2016 18:29:47 GMT."""


def kind_of(notice: Notice | None) -> tuple[NoticeKind, bool] | None:
    """Return what decides about the consequence; None: there is no notice."""
    return None if notice is None else (notice.kind, notice.stays)


@pytest.mark.parametrize(
    ("body", "expected"), [("FALSE", None), ("TRUE", TAKEN), ("TRUE\n", TAKEN)]
)
def test_gce_says_whether_the_vm_is_preempted(body: str, expected: object) -> None:
    """TRUE from the moment of the preemption on."""
    assert kind_of(notices.gce_preempted(body)) == expected


def test_an_undocumented_answer_about_a_preemption_is_an_error() -> None:
    """A login page of a proxy is no preemption."""
    with pytest.raises(ValueError, match="neither TRUE nor FALSE"):
        notices.gce_preempted("<html>")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("NONE", None),
        ("", None),
        ("MIGRATE_ON_HOST_MAINTENANCE", PAUSES),
        ("TERMINATE_ON_HOST_MAINTENANCE", ENDS),
        ("SOMETHING_NEW", PAUSES),
    ],
)
def test_a_node_leaves_only_for_maintenance_that_ends_it(body: str, expected: object) -> None:
    """A live migration leaves the node in place; so does a word that nobody has documented."""
    assert kind_of(notices.gce_maintenance(body)) == expected


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_each_action_on_a_spot_instance_ends_the_node(action: str) -> None:
    """The time is the service's own."""
    found = notices.aws_instance_action(f'{{"action": "{action}", "time": "2017-09-18T08:22:00Z"}}')
    assert kind_of(found) == TAKEN
    assert found is not None
    assert found.seconds_left(1505722900.0) == 20.0
    assert found.seconds_left(1505722999.0) == 0.0
    assert action in found.text


def test_a_spot_instance_without_a_readable_time_goes_at_once() -> None:
    """The notice counts all the same."""
    found = notices.aws_instance_action('{"action": "stop"}')
    assert found is not None
    assert found.seconds_left(0.0) == 0.0


def test_a_rebalance_recommendation_is_a_mere_warning() -> None:
    """AWS says that the risk is higher; many such instances live on."""
    found = notices.aws_rebalance('{"noticeTime": "2020-10-27T08:22:00Z"}')
    assert kind_of(found) == RISK


@pytest.mark.parametrize("body", ["[]", "no", '{"time": 1}'])
def test_an_answer_of_aws_without_an_action_is_an_error(body: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"no|Expecting"):
        notices.aws_instance_action(body)


def event(what: str, **more: Any) -> dict[str, Any]:
    """Return one scheduled event of the VM `me`, as Azure documents it."""
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": what,
        "ResourceType": "VirtualMachine",
        "Resources": ["me", "another"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


def azure(*events: dict[str, Any], name: str = "me") -> Notice | None:
    """Return what a VM makes of a document with these events."""
    return notices.azure_events(json.dumps({"DocumentIncarnation": 1, "Events": events}), name)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("Freeze", PAUSES),
        ("Reboot", ENDS),
        ("Redeploy", ENDS),
        ("Preempt", TAKEN),
        ("Terminate", TAKEN),
        ("Unheard", PAUSES),
    ],
)
def test_a_vm_of_azure_leaves_for_events_that_end_or_restart_it(
    what: str, expected: object
) -> None:
    """A freeze of seconds keeps memory and connections."""
    assert kind_of(azure(event(what))) == expected


def test_an_event_of_azure_has_its_time() -> None:
    """Until it has started: then it is now."""
    found = azure(event("Reboot"))
    assert found is not None
    assert found.seconds_left(SCHEDULED - 30.0) == 30.0
    started = azure(event("Reboot", EventStatus="Started", NotBefore=""))
    assert started is not None
    assert started.seconds_left(0.0) == 0.0


def test_events_of_other_vms_are_no_notices() -> None:
    """The document is about a whole scale set; names are compared without regard to case."""
    assert azure(event("Preempt"), name="third") is None
    assert azure(event("Preempt", EventStatus="Completed")) is None
    assert azure() is None
    assert kind_of(azure(event("Preempt"), name="ME")) == TAKEN


def test_the_gravest_of_several_events_counts() -> None:
    """A node that is to be taken away leaves, whatever pauses before."""
    assert kind_of(azure(event("Freeze"), event("Preempt"))) == TAKEN


@pytest.mark.parametrize("body", ["[]", "{}", '{"Events": 3}', "<html>"])
def test_a_document_without_events_is_an_error(body: str) -> None:
    """It is not taken for an empty one."""
    with pytest.raises(ValueError, match=r"no|Expecting"):
        notices.azure_events(body, "me")


@pytest.mark.parametrize(
    ("body", "expected", "text", "left"),
    [
        ("", TAKEN, "preemption", 0.0),
        ("preemption\n", TAKEN, "preemption", 0.0),
        ("Maintenance 90 a fan is changed", ENDS, "a fan is changed", 88.0),
        ("maintenance in rack 3", ENDS, "in rack 3", 0.0),
        ("warning", PAUSES, "warning", 0.0),
        ("preemption 1", TAKEN, "preemption", 0.0),
    ],
)
def test_a_file_gives_kind_seconds_and_text(
    body: str, expected: object, text: str, left: float
) -> None:
    """An empty file is a preemption: `touch` is enough."""
    found = notices.file_notice(body, written=100.0, began=50.0)
    assert kind_of(found) == expected
    assert found is not None
    assert (found.text, found.seconds_left(102.0)) == (text, left)


def test_a_file_can_be_taken_back_without_removing_it() -> None:
    """By its first word."""
    assert notices.file_notice("none at all", written=100.0, began=50.0) is None


def test_a_file_from_before_the_agent_is_about_an_agent_before_it() -> None:
    """The next agent of a node does not leave because of the notice to its predecessor."""
    assert notices.file_notice("preemption", written=49.0, began=50.0) is None


def test_a_file_with_an_unknown_word_names_the_known_ones() -> None:
    """A wrong word makes no node leave."""
    with pytest.raises(ValueError, match="preemption, maintenance, warning, none"):
        notices.file_notice("premption 30", written=100.0, began=50.0)


SPOT = Notice(kind=NoticeKind.PREEMPTION, text="spot", at=10.0)


@pytest.mark.parametrize(
    ("known", "found", "expected"),
    [
        (None, None, False),
        (None, SPOT, True),
        (SPOT, SPOT, False),
        (SPOT, Notice(kind=NoticeKind.PREEMPTION, text="other", at=20.0), False),
        (SPOT, Notice(kind=NoticeKind.MAINTENANCE, text="spot"), True),
        (Notice(kind=NoticeKind.PREEMPTION, text="risk", stays=True), SPOT, True),
        (SPOT, None, True),
    ],
)
def test_only_a_notice_of_another_kind_is_news(
    known: Notice | None, found: Notice | None, *, expected: bool
) -> None:
    """The same answer comes every second."""
    assert notices.is_news(known, found) is expected


def test_the_pause_doubles_up_to_a_minute() -> None:
    """A cloud that is not there is asked once a minute."""
    assert [notices.pause(failures) for failures in (1, 2, 3, 7, 100)] == [1, 2, 4, 60, 60]


def test_a_notice_is_said_to_every_new_master_until_it_is_withdrawn() -> None:
    """It outlives rounds, and its time has gone on."""
    said = Statements()
    said.note(NoticeReceived(source="gce preempted", seconds_left=30.0), 0, now=10.0)
    said.note(NoticeReceived(source="file", seconds_left=5.0), 0, now=10.0)
    said.forget_before(7)
    again = [request.message for request in said.again(Fence(), now=18.0)]
    assert again == [
        NoticeReceived(source="gce preempted", seconds_left=22.0),
        NoticeReceived(source="file", seconds_left=0.0),
    ]
    said.withdraw("gce preempted")
    said.withdraw("aws rebalance")
    assert [request.message for request in said.again(Fence(), now=18.0)] == again[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("gce", {"gce": "http://metadata.google.internal"}),
        (
            "aws, azure@https://10.0.0.1:8443/",
            {"aws": "http://169.254.169.254", "azure": "https://10.0.0.1:8443"},
        ),
        ("file:/run/n-{node_rank}", {"file": "/run/n-7"}),
    ],
)
def test_the_variable_names_sources(text: str, expected: dict[str, str]) -> None:
    """Each with its address, or the usual one."""
    assert parse(text, 7) == expected


@pytest.mark.parametrize(
    "text", ["gcp", "file:notice", "file", "gce@", "aws@ftp://x", "aws@http://", "gce,gce", "1"]
)
def test_a_wrong_source_is_refused_with_the_remedy(text: str) -> None:
    """Before anything is started."""
    with pytest.raises(InputError, match="HOLDFAST_NOTICES="):
        parse(text)
