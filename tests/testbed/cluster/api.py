"""Plain requests to the API server, for tests: one call, its status code and its answer."""

from __future__ import annotations

import dataclasses
import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from house.patience import patience

_TIMEOUT_SECONDS = 30.0 * patience()
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A response of the API server."""

    code: int
    body: Any
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether the server did what was asked."""
        return self.code < http.HTTPStatus.BAD_REQUEST

    @property
    def message(self) -> str:
        """Why it refused; empty where it did not."""
        return "" if self.ok else str(self.body.get("message", self.body))


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """The API server as one user sees it."""

    port: int
    token: str
    ca: Path

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Answer:
        """Make one request; raises OSError where nobody answers."""
        context = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=_TIMEOUT_SECONDS, context=context
        )
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
            warnings = tuple(response.msg.get_all("Warning", ()))
        finally:
            connection.close()
        try:
            return Answer(response.status, json.loads(text), warnings)
        except ValueError:
            return Answer(response.status, {"message": text.decode(errors="replace")}, warnings)

    def get(self, path: str) -> Answer:
        """Read."""
        return self.call("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        """Create."""
        return self.call("POST", path, body)

    def merge(self, path: str, body: Any) -> Answer:
        """Change by a JSON merge patch."""
        return self.call("PATCH", path, body, MERGE)

    def apply(self, path: str, body: Any, manager: str, *, force: bool = False) -> Answer:
        """Change by server-side apply."""
        query = f"?fieldManager={manager}&force={str(force).lower()}"
        return self.call("PATCH", path + query, body, APPLY)

    def delete(self, path: str) -> Answer:
        """Delete."""
        return self.call("DELETE", path)
