"""Errors of requests to the API server."""

from __future__ import annotations

import http
import re
from typing import Final

_TROUBLE: Final = frozenset(
    {
        http.HTTPStatus.TOO_MANY_REQUESTS,
        http.HTTPStatus.INTERNAL_SERVER_ERROR,
        http.HTTPStatus.BAD_GATEWAY,
        http.HTTPStatus.SERVICE_UNAVAILABLE,
        http.HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_POLICY_WORDS: Final = ("denied request", "denied the request", "failed calling webhook")
_UNDECLARED: Final = re.compile(r"\.status\.(\S+): field not declared in schema")
_SELECTOR: Final = re.compile(r"\[[^\]]*\]")
"""Which item of a list is meant."""


class KubeError(Exception):
    """A request failed."""


class UnreachableError(KubeError):
    """The API server did not answer, or not in time."""


class NotYetError(KubeError):
    """Another object has to go first; a later try will succeed."""


class TakenError(KubeError):
    """An object with a name that a job needs belongs to another owner; the text has the remedy."""


class DroppedFieldsError(KubeError):
    """The API server dropped what the operator has to remember; the text has the remedy."""


class ApiRefusedError(KubeError):
    """The API server answered with an error; `message` is its own text."""

    def __init__(self, what: str, code: int, reason: str, message: str) -> None:
        super().__init__(f"{what}: {code} {reason}: {message}")
        self._method = what.partition(" ")[0]
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def is_gone(self) -> bool:
        """True if the object does not exist, or another one has its name."""
        return self.code == http.HTTPStatus.NOT_FOUND or self.is_outdated

    @property
    def is_outdated(self) -> bool:
        """True if the object was changed since the version that the request was made from."""
        return self._conflicts and self._method != "POST"

    @property
    def _conflicts(self) -> bool:
        return self.code == http.HTTPStatus.CONFLICT and self.reason == "Conflict"

    @property
    def exists(self) -> bool:
        """True if an object of that name exists already."""
        return self.code == http.HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def is_admission(self) -> bool:
        """True if a rule of the cluster refuses for now: a quota, a policy, a webhook.

        Policies and webhooks answer with the codes for a wrong object; only their texts differ.
        """
        refused = self.code == http.HTTPStatus.FORBIDDEN
        return refused or any(words in self.message for words in _POLICY_WORDS)

    @property
    def undeclared(self) -> frozenset[str]:
        """Fields of a status that the CRD lacks, as paths; an apply with one is refused whole."""
        found = _UNDECLARED.findall(self.message)
        return frozenset(_SELECTOR.sub("", one) for one in found)

    @property
    def is_trouble(self) -> bool:
        """True if the API server is in trouble, or asks for patience: a later try may succeed."""
        # A quota that two requests use at the same moment answers a POST with a conflict.
        collided = self._conflicts and self._method == "POST"
        wrong = self.is_admission or self.undeclared  # for which the code is 500
        return (self.code in _TROUBLE or collided) and not wrong

    @property
    def is_invalid(self) -> bool:
        """True if the object itself is at fault: sending it again is of no use."""
        wrong = {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY}
        return self.code in wrong and not self.is_admission
