"""Reads kubeconfig files as kubectl does: the API server and the user.

Reads files and runs their credential plugin; opens no connection.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast_cli.errors import BadInputError

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_SECONDS: Final = 60.0
"""Deadline of a credential plugin, s: it may ask a person in a browser."""
_UNSUPPORTED: Final = {
    "auth-provider": "kubectl itself has dropped it; use a credential plugin (exec)",
    "username": "API servers have dropped it; use a token or a certificate",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Choice of a cluster on the command line; empty: as the kubeconfig says."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access of one user to one API server."""

    server: str
    namespace: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext
    server_name: str = ""
    """Name in the server's certificate, if it is not the server's host name."""
    context: str = ""
    """Name of the context, for people."""


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return True if a cluster is configured; reads no file."""
    return _in_cluster(environ) or any(file.is_file() for file in _files(environ, Where()))


def load(environ: Mapping[str, str], where: Where) -> Access:
    """Return the chosen access.

    Raises:
        BadInputError: There is none, or the kubeconfig cannot be used; the text says why.
    """
    files = [file for file in _files(environ, where) if file.is_file()]
    if where.kubeconfig and not files:
        raise BadInputError(f"--kubeconfig {where.kubeconfig}: there is no such file")
    if not files and _in_cluster(environ):
        return _of_pod(environ, where)
    config = _merged(files)
    name = where.context or config.current
    if not name:
        raise BadInputError("no cluster is chosen: give --context, or `kubectl config use-context`")
    context = config.pick("context", name)
    cluster = config.pick("cluster", context.get("cluster", ""))
    user = config.pick("user", context["user"]) if context.get("user") else {}
    return _access(name, where.namespace or context.get("namespace", ""), cluster, user, environ)


@dataclasses.dataclass(frozen=True, slots=True)
class _Config:
    """Several files as one: the first file with a value wins."""

    current: str
    entries: Mapping[tuple[str, str], Mapping[str, Any]]

    def pick(self, kind: str, name: str) -> Mapping[str, Any]:
        found = self.entries.get((kind, name))
        if found is None:
            known = sorted(one for other, one in self.entries if other == kind)
            raise BadInputError(
                f"the kubeconfig has no {kind} {name!r}; it has {', '.join(known) or 'none'}"
            )
        return found


def _files(environ: Mapping[str, str], where: Where) -> list[Path]:
    if where.kubeconfig:
        return [Path(where.kubeconfig)]
    named = environ.get("KUBECONFIG")
    if named:
        return [Path(one) for one in named.split(os.pathsep) if one]
    return [Path(environ.get("HOME", "/root")) / ".kube" / "config"]


def _in_cluster(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (_ACCOUNT / "token").is_file()


def _of_pod(environ: Mapping[str, str], where: Where) -> Access:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{host}:{port}",
        namespace=where.namespace or (_ACCOUNT / "namespace").read_text().strip(),
        headers={"Authorization": f"Bearer {(_ACCOUNT / 'token').read_text().strip()}"},
        tls=ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt")),
        context="this pod's cluster",
    )


def _merged(files: list[Path]) -> _Config:
    # Imported here: jobs of this machine need no YAML.
    import yaml

    current = ""
    entries: dict[tuple[str, str], Mapping[str, Any]] = {}
    for file in files:
        try:
            data = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
            current = current or data.get("current-context") or ""
            for kind in ("context", "cluster", "user"):
                for one in data.get(f"{kind}s") or ():
                    entries.setdefault((kind, one["name"]), _anchored(one.get(kind) or {}, file))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise BadInputError(f"{file} is no kubeconfig: {error}") from error
    return _Config(current, entries)


def _anchored(entry: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the entry with its paths relative to its file."""
    found = dict(entry)
    for name in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
        if found.get(name):
            found[name] = str(file.parent / found[name])
    return found


def _access(
    name: str,
    namespace: str,
    cluster: Mapping[str, Any],
    user: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Access:
    for field, why in _UNSUPPORTED.items():
        if user.get(field):
            raise BadInputError(f"context {name}: the user's {field} is not supported: {why}")
    if cluster.get("proxy-url"):
        raise BadInputError(f"context {name}: proxy-url is not supported; set HTTPS_PROXY instead")
    user = {**user, **_from_plugin(user["exec"], cluster, environ)} if user.get("exec") else user
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=namespace or "default",
        headers=_headers(user),
        tls=_tls(name, cluster, user),
        server_name=cluster.get("tls-server-name", ""),
        context=name,
    )


def _headers(user: Mapping[str, Any]) -> dict[str, str]:
    token = user.get("token") or ""
    if user.get("tokenFile"):
        token = Path(user["tokenFile"]).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if user.get("as"):
        headers["Impersonate-User"] = user["as"]
    return headers


def _tls(name: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"),
            cadata=_text(cluster.get("certificate-authority-data")),
        )
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _add_client(context, user)
    except (OSError, ValueError) as error:
        raise BadInputError(f"context {name}: its certificates cannot be used: {error}") from error
    return context


def _add_client(context: ssl.SSLContext, user: Mapping[str, Any]) -> None:
    if user.get("client-certificate-data"):
        # The ssl library reads key pairs from files only.
        with tempfile.TemporaryDirectory(prefix="holdfast-kube-") as folder:
            file = Path(folder) / "pair.pem"
            file.touch(mode=0o600)
            pair = (_text(user[f"client-{part}-data"]) or "" for part in ("certificate", "key"))
            file.write_text("\n".join(pair))
            context.load_cert_chain(file)
    elif user.get("client-certificate"):
        context.load_cert_chain(user["client-certificate"], user.get("client-key"))


def _text(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None


def _from_plugin(
    plugin: Mapping[str, Any], cluster: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, str]:
    """Run a credential plugin; return its answer with the keys of a kubeconfig's user."""
    command = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {
            "server": cluster.get("server"),
            "certificate-authority-data": cluster.get("certificate-authority-data"),
        }
    asked = {"kind": "ExecCredential", "apiVersion": plugin["apiVersion"], "spec": spec}
    own = {one["name"]: one["value"] for one in plugin.get("env") or ()}
    try:
        done = subprocess.run(
            command,
            env={**environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_PLUGIN_SECONDS,
        )
        status = json.loads(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise BadInputError(f"the credential plugin {command[0]} gave nothing: {error}") from error
    found = {"token": status["token"]} if status.get("token") else {}
    for ours, theirs in (("certificate", "clientCertificateData"), ("key", "clientKeyData")):
        if status.get(theirs):
            found[f"client-{ours}-data"] = base64.b64encode(status[theirs].encode()).decode()
    return found
