"""Insides of a pod's containers: environment variables and the files of volumes.

Reads Secrets, ConfigMaps, claims and tokens from the API server as the node's own account.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cluster.kubelet.client import NOT_FOUND, ApiError, Client
from cluster.kubelet.refusals import refused_path
from holdfast_operator.pods.process import expand

_DATA: Final = "..data"
_KINDS: Final = {"secret": "secrets", "configMap": "configmaps"}
_UNITS: Final = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}
Files = dict[str, bytes]


class MaterialError(RuntimeError):
    """Something that a pod asks for is not there (yet); a kubelet tries again."""


class Material:
    """Reads what one pod needs."""

    def __init__(self, client: Client, manifest: Mapping[str, Any], node: str, host: str) -> None:
        self._client = client
        self._manifest = manifest
        self._namespace = manifest["metadata"]["namespace"]
        self._node = node
        self._host = host
        self.address = ""
        """The pod's own, once it has one."""

    async def environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that the manifest sets in a container."""
        found: dict[str, str] = {}
        for source in container.get("envFrom") or ():
            prefix = source.get("prefix", "")
            for kind, field in (("secret", "secretRef"), ("configMap", "configMapRef")):
                if field in source:
                    files = await self._object(kind, source[field])
                    found |= {prefix + name: data.decode() for name, data in files.items()}
        for variable in container.get("env") or ():
            value = await self._variable(variable, found)
            if value is not None:
                found[variable["name"]] = value
        return found

    async def _variable(self, variable: Mapping[str, Any], known: Mapping[str, str]) -> str | None:
        source = variable.get("valueFrom")
        if source is None:
            return expand(variable.get("value", ""), known)
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        for kind, name in (("secret", "secretKeyRef"), ("configMap", "configMapKeyRef")):
            if name in source:
                files = await self._object(kind, source[name])
                key = source[name]["key"]
                if key in files:
                    return files[key].decode()
                if source[name].get("optional"):
                    return None
                raise MaterialError(f"{kind} {source[name]['name']} has no key {key}")
        raise MaterialError(f"valueFrom {sorted(source)} is nothing that this kubelet knows")

    def field(self, path: str) -> str:
        """Return what a fieldRef names."""
        metadata, spec = self._manifest["metadata"], self._manifest["spec"]
        fixed = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": self._node,
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "status.hostIP": self._host,
            "status.podIP": self.address,
            "status.podIPs": self.address,
        }
        if path in fixed:
            return str(fixed[path])
        group, _, key = path.partition("['")
        group = group.removeprefix("metadata.")
        if group not in {"labels", "annotations"}:
            raise MaterialError(f"fieldPath {path} is nothing that this kubelet knows")
        return str(metadata.get(group, {}).get(key.removesuffix("']"), ""))

    async def volume(self, volume: Mapping[str, Any], folder: Path) -> tuple[Path, bool]:
        """Make one volume; return what to mount of this machine, and whether read-only."""
        if "hostPath" in volume:
            if why := refused_path(volume["hostPath"]):
                raise MaterialError(why)
            return Path(volume["hostPath"]["path"]), False
        if "persistentVolumeClaim" in volume:
            return await self._claim(volume["persistentVolumeClaim"]["claimName"]), False
        _make(folder)
        if "emptyDir" in volume:
            if (volume["emptyDir"] or {}).get("medium") == "Memory":
                limit = str(volume["emptyDir"].get("sizeLimit", ""))
                await asyncio.to_thread(mount_memory, folder, limit)
            return folder, False
        await self.refresh(volume, folder)
        return folder, True

    async def refresh(self, volume: Mapping[str, Any], folder: Path) -> None:
        """Write the files of a volume as the API server has them now, all at once."""
        mode = next(
            (volume[kind].get("defaultMode") for kind in (*_KINDS, "projected") if kind in volume),
            None,
        )
        files: Files = {}
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        for source in sources:
            files |= await self._files(source)
        _write(folder, files, 0o644 if mode is None else mode, self._group())

    def _group(self) -> int | None:
        group = (self._manifest["spec"].get("securityContext") or {}).get("fsGroup")
        return group if isinstance(group, int) else None

    async def _files(self, source: Mapping[str, Any]) -> Files:
        for kind in _KINDS:
            if kind in source:
                return _chosen(await self._object(kind, source[kind]), source[kind].get("items"))
        if "downwardAPI" in source:
            items = source["downwardAPI"]["items"]
            return {one["path"]: self.field(one["fieldRef"]["fieldPath"]).encode() for one in items}
        if "serviceAccountToken" in source:
            return await self._token(source["serviceAccountToken"])
        raise MaterialError(f"volume of {sorted(source)} is nothing that this kubelet knows")

    async def _object(self, kind: str, reference: Mapping[str, Any]) -> Files:
        name = reference.get("secretName") or reference["name"]
        try:
            found = await self._client.call("GET", self._path(_KINDS[kind], name))
        except ApiError as error:
            if error.code == NOT_FOUND and reference.get("optional"):
                return {}
            raise MaterialError(f'{kind} "{name}" not found: {error}') from error
        data = found.get("data") or {}
        if kind == "secret":
            return {key: base64.b64decode(value) for key, value in data.items()}
        return {key: value.encode() for key, value in data.items()}

    async def _token(self, wish: Mapping[str, Any]) -> Files:
        metadata = self._manifest["metadata"]
        pod = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec: dict[str, Any] = {
            "expirationSeconds": wish.get("expirationSeconds", 3600),
            "boundObjectRef": pod,
            "audiences": [wish["audience"]] if "audience" in wish else [],
        }
        account = self._manifest["spec"]["serviceAccountName"]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"{self._path('serviceaccounts', account)}/token"
        answer = await self._client.call("POST", path, body)
        return {wish["path"]: answer["status"]["token"].encode()}

    async def _claim(self, name: str) -> Path:
        claim = await self._client.call("GET", self._path("persistentvolumeclaims", name))
        volume = claim["spec"].get("volumeName")
        if not volume:
            raise MaterialError(f"claim {name} is not bound")
        found = await self._client.call("GET", f"/api/v1/persistentvolumes/{volume}")
        if "hostPath" in found["spec"]:
            return Path(found["spec"]["hostPath"]["path"])
        folder = Path(found["spec"]["local"]["path"])
        if (group := self._group()) is not None:
            await asyncio.to_thread(give_to_group, folder, group)
        return folder

    def _path(self, kind: str, name: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{kind}/{name}"


def mount_memory(folder: Path, limit: str = "") -> None:
    """Mount memory at a folder, as large as a quantity says; empty: as the machine lets it be."""
    if folder.is_mount():
        return
    number, unit = re.fullmatch(r"(\d*)(.*)", limit).groups()  # type: ignore[union-attr]
    size = f"size={int(number) * _UNITS[unit]}" if number else "mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "memory", folder], check=True)
    folder.chmod(0o1777)


def give_to_group(folder: Path, group: int) -> None:
    """Let a pod's fsGroup write to a volume, old files included; not to one of kind hostPath."""
    for one in (folder, *folder.rglob("*")):
        os.chown(one, -1, group)
        one.chmod(one.stat().st_mode | (0o2770 if one.is_dir() else 0o660))


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)


def _chosen(files: Files, items: list[Mapping[str, Any]] | None) -> Files:
    if items is None:
        return files
    missing = [one["key"] for one in items if one["key"] not in files]
    if missing:
        raise MaterialError(f"references non-existent key: {missing[0]}")
    return {one["path"]: files[one["key"]] for one in items}


def _write(folder: Path, files: Files, mode: int, group: int | None) -> None:
    """Files behind a link that is changed at once, as a kubelet does it; nothing where equal."""
    link = folder / _DATA
    if link.exists() and _read(link) == files:
        return
    number = int(link.readlink().name[2:]) + 1 if link.is_symlink() else 1
    fresh = folder / f"..{number}"
    for name, data in files.items():
        place = fresh / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(mode if group is None else mode | 0o040)
        if group is not None:
            os.chown(place, -1, group)
    fresh.mkdir(exist_ok=True)
    temporary = folder / "..new"
    temporary.symlink_to(fresh.name)
    temporary.rename(link)
    for name in {name.partition("/")[0] for name in files}:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{_DATA}/{name}")


def _read(folder: Path) -> Files:
    found = (one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): one.read_bytes() for one in found}
