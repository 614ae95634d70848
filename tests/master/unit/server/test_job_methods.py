"""Methods of JobService: each that the wire has is answered."""

from __future__ import annotations

from holdfast_master.job.requests import user_requests
from holdfast_wire import messages
from holdfast_wire.messages import METHODS

VIEWS = "GetJob WatchJob ListNodes ListEvents GetGoodput GetHealth ListIncidents GetIncident"
"""Answered from what the core shows; they change nothing."""


def test_every_method_has_a_view_or_a_handler_in_the_core() -> None:
    """One that has neither would end the call with an internal error."""
    asked = {
        getattr(messages, request)
        for method, (request, _) in METHODS.items()
        if method.startswith("/holdfast.v1.JobService/")
    }
    views = {getattr(messages, f"{name}Request") for name in VIEWS.split()}
    assert set(user_requests._HANDLERS) == asked - views
