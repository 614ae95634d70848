"""How a request to the API server can fail."""

from __future__ import annotations

import http


class KubeError(Exception):
    """A request did not do what it should."""


class UnreachableError(KubeError):
    """Nobody answered, or not in time."""


class RefusedError(KubeError):
    """The API server answered with an error; `message` has its own words."""

    def __init__(self, what: str, code: int, reason: str, message: str) -> None:
        super().__init__(f"{what}: {code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def is_gone(self) -> bool:
        """Whether the object is not there, or is another one of that name."""
        return self.code == http.HTTPStatus.NOT_FOUND or (
            self.code == http.HTTPStatus.CONFLICT and self.reason == "Conflict"
        )

    @property
    def exists(self) -> bool:
        """Whether an object of that name is there already."""
        return self.code == http.HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def is_invalid(self) -> bool:
        """Whether the object itself is at fault: sending it again is no use."""
        return self.code in {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY}
