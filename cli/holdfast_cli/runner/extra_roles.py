"""Messages for people about ended pods of extra roles.

Belongs here: the sentences. The master does not know these pods, so no event of the job mentions
them. Does not belong here: the decision to make them again (the operator's `plan`).
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_operator.plan.actions import CreatePod, Plan
from holdfast_operator.plan.pods import Role
from holdfast_operator.status.conditions import EXTRA_GIVEN_UP


class ExtraRoles:
    """Reports each restart once, and once that there will be no more."""

    def __init__(self) -> None:
        """Begin without a report."""
        self._given_up = ""

    def news(self, made: Plan) -> Iterator[str]:
        """Yield a line for each pod of an extra role that is made again or given up."""
        for action in made.actions:
            if not isinstance(action, CreatePod) or action.slot.role is not Role.EXTRA:
                continue
            if action.incarnation > 0:
                yield f"{action.reason}; {action.name} takes its place"
        conditions = made.status.get("conditions", ())
        text = next((one["message"] for one in conditions if one["reason"] == EXTRA_GIVEN_UP), "")
        if text and text != self._given_up:
            self._given_up = text
            yield text
