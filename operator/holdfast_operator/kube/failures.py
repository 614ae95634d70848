"""How a request to the API server can fail."""

from __future__ import annotations

import http
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


class KubeError(Exception):
    """A request did not do what it should."""


class UnreachableError(KubeError):
    """Nobody answered, or not in time."""


class NotYetError(KubeError):
    """Something has to go first; a later try will do."""


class TakenError(KubeError):
    """An object of a name that a job needs is somebody else's; says whose remedy it is."""


class RefusedError(KubeError):
    """The API server answered with an error; `message` has its own words."""

    def __init__(self, what: str, code: int, reason: str, message: str) -> None:
        super().__init__(f"{what}: {code} {reason}: {message}")
        self._method = what.partition(" ")[0]
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def is_gone(self) -> bool:
        """Whether the object is not there, or is another one of that name."""
        return self.code == http.HTTPStatus.NOT_FOUND or (self._conflicts and not self._makes)

    @property
    def _conflicts(self) -> bool:
        return self.code == http.HTTPStatus.CONFLICT and self.reason == "Conflict"

    @property
    def _makes(self) -> bool:
        return self._method == "POST"

    @property
    def exists(self) -> bool:
        """Whether an object of that name is there already."""
        return self.code == http.HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def is_admission(self) -> bool:
        """Whether the cluster's own rules say no for now: a quota, a policy, a webhook.

        Policies and webhooks answer with the codes of a wrong object; their words tell them apart.
        """
        refused = self.code == http.HTTPStatus.FORBIDDEN
        return refused or any(words in self.message for words in _POLICY_WORDS)

    @property
    def is_trouble(self) -> bool:
        """Whether the API server is in trouble, or asks for patience: soon the same may do."""
        # A quota that another request counts on at the same moment answers a POST with a conflict.
        return (self.code in _TROUBLE or (self._conflicts and self._makes)) and (
            not self.is_admission
        )

    @property
    def is_invalid(self) -> bool:
        """Whether the object itself is at fault: sending it again is no use."""
        wrong = {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY}
        return self.code in wrong and not self.is_admission
