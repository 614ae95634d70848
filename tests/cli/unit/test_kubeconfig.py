"""A kubeconfig is read as kubectl reads it, and what cannot be used is said by name."""

from __future__ import annotations

import base64
import datetime as dt
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.cluster.kubeconfig import Where, is_configured, load
from holdfast_cli.errors import BadInputError
from holdfast_wire.authority import JobAuthority, new_root_key
from holdfast_wire.identity import Identity

_NOW = dt.datetime.now(dt.UTC)


def _file(place: Path, *, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    config = {
        "current-context": "dev",
        "contexts": [
            {"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "bare", "context": {"cluster": "c"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **cluster}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(config))
    return place


def _environ(*files: Path) -> dict[str, str]:
    return {"KUBECONFIG": ":".join(map(str, files)), "HOME": "/nowhere"}


def test_the_current_context_says_who_asks_where(tmp_path: Path) -> None:
    """Server, namespace and token."""
    found = load(_environ(_file(tmp_path / "config")), Where())
    assert (found.server, found.namespace, found.context) == ("https://api:6443", "team", "dev")
    assert found.headers == {"Authorization": "Bearer secret"}


def test_a_person_may_choose_otherwise(tmp_path: Path) -> None:
    """Context and namespace on the command line count more than the file."""
    environ = _environ(_file(tmp_path / "config"))
    found = load(environ, Where(context="bare", namespace="mine"))
    assert (found.namespace, found.headers) == ("mine", {})
    assert load(environ, Where(namespace="mine")).namespace == "mine", "the context has another"
    assert load(environ, Where(context="bare")).namespace == "default"


def test_of_several_files_the_first_that_says_something_counts(tmp_path: Path) -> None:
    """$KUBECONFIG is a list; a file that is not there is none."""
    first = _file(tmp_path / "one", user={"token": "first"})
    second = _file(tmp_path / "two", user={"token": "second"})
    found = load(_environ(tmp_path / "absent", first, second), Where())
    assert found.headers["Authorization"] == "Bearer first"


def test_paths_are_as_seen_from_their_file(tmp_path: Path) -> None:
    """A kubeconfig that names its files beside it works from everywhere."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "token").write_text("of a file\n")
    found = load(_environ(_file(tmp_path / "sub/config", user={"tokenFile": "token"})), Where())
    assert found.headers["Authorization"] == "Bearer of a file"


def test_certificates_may_stand_in_the_file(tmp_path: Path) -> None:
    """As kind and kubeadm write them; nothing of the key stays on the disk."""
    authority = JobAuthority(new_root_key(), "00000000-0000-0000-0000-000000000001", _NOW)
    identity = Identity("00000000-0000-0000-0000-000000000001", "user")
    pair = authority.issue(identity, _NOW, dt.timedelta(days=1))

    def data(text: bytes) -> str:
        return base64.b64encode(text).decode()

    user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    file = _file(tmp_path / "config", user=user, **{"certificate-authority-data": data(pair.ca)})
    found = load(_environ(file), Where())
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert len(found.tls.get_ca_certs()) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["config"]


def test_an_unverified_server_is_the_files_own_wish(tmp_path: Path) -> None:
    """insecure-skip-tls-verify is honoured, and never the default."""
    unverified: dict[str, Any] = {"insecure-skip-tls-verify": True}
    file = _file(tmp_path / "config", **unverified)
    assert load(_environ(file), Where()).tls.verify_mode is ssl.CERT_NONE
    assert load(_environ(_file(tmp_path / "b")), Where()).tls.verify_mode is ssl.CERT_REQUIRED


def test_a_credential_plugin_is_asked(tmp_path: Path) -> None:
    """Clouds' kubeconfigs name a program that prints a token."""
    script = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        "print(json.dumps({'status': {'token': os.environ['WHO'] + asked['apiVersion']}}))"
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", script],
        "env": [{"name": "WHO", "value": "me "}],
    }
    found = load(_environ(_file(tmp_path / "config", user={"exec": plugin})), Where())
    assert found.headers["Authorization"] == "Bearer me client.authentication.k8s.io/v1"


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider is not supported"),
        ({"username": "me"}, {}, "username is not supported"),
        ({"exec": {"apiVersion": "v1", "command": "/no/such"}}, {}, "plugin /no/such gave nothing"),
        ({"exec": {"apiVersion": "v1", "command": "false"}}, {}, "plugin false gave nothing"),
        ({"client-certificate": "absent"}, {}, "certificates cannot be used"),
        (None, {"proxy-url": "http://p"}, "set HTTPS_PROXY instead"),
        (None, {"certificate-authority": "absent"}, "certificates cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, user: dict[str, Any] | None, cluster: dict[str, Any], said: str
) -> None:
    """With the remedy where there is one."""
    with pytest.raises(BadInputError, match=said):
        load(_environ(_file(tmp_path / "config", user=user, **cluster)), Where())


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("{}", Where(), "give --context"),
        ("[1", Where(), "is no kubeconfig"),
        ("text", Where(), "is no kubeconfig"),
        ("{}", Where(context="x"), "no context 'x'; it has none"),
        ("{}", Where(kubeconfig="/no/such"), "there is no such file"),
    ],
)
def test_a_file_that_chooses_nothing_is_refused(
    tmp_path: Path, text: str, where: Where, said: str
) -> None:
    """Before anything is asked of any cluster."""
    (tmp_path / "config").write_text(text)
    with pytest.raises(BadInputError, match=said):
        load(_environ(tmp_path / "config"), where)


def test_a_machine_without_a_cluster_has_none(tmp_path: Path) -> None:
    """So that a misspelt local job is looked for nowhere else."""
    assert not is_configured({"HOME": str(tmp_path)})
    assert not is_configured(_environ(tmp_path / "absent"))
    _file(tmp_path / ".kube/config")
    assert is_configured({"HOME": str(tmp_path)})
