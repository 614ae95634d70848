"""Kubernetes' own rules for `metadata` and the top level of every object.

The CRD leaves these to the API server, so a job file without one needs them here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.spec.problems import Problem, ProblemKind, nearest, show_value
from holdfast_operator.spec.schema import Crd, FieldKind, Schema

_TEXT: Final = Schema(kind=FieldKind.STRING)
_ANYTHING: Final = Schema(kind=FieldKind.OBJECT, preserve=True)
_OBJECTS: Final = Schema(kind=FieldKind.ARRAY, items=_ANYTHING)
_LABEL: Final = Schema(
    kind=FieldKind.STRING, most=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
)
_NAMESPACE: Final = Schema(
    kind=FieldKind.STRING, least=1, most=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
)
_NAME: Final = Schema(kind=FieldKind.STRING, description="the job's name")

_OBJECT_META: Final[Mapping[str, Schema]] = {
    "annotations": Schema(kind=FieldKind.OBJECT, values=_TEXT),
    "creationTimestamp": _TEXT,
    "deletionGracePeriodSeconds": Schema(kind=FieldKind.INTEGER, form="int64"),
    "deletionTimestamp": _TEXT,
    "finalizers": Schema(kind=FieldKind.ARRAY, items=_TEXT, unique="set"),
    "generateName": _TEXT,
    "generation": Schema(kind=FieldKind.INTEGER, form="int64"),
    "labels": Schema(kind=FieldKind.OBJECT, values=_LABEL),
    "managedFields": _OBJECTS,
    "name": _NAME,
    "namespace": _NAMESPACE,
    "ownerReferences": _OBJECTS,
    "resourceVersion": _TEXT,
    "selfLink": _TEXT,
    "uid": _TEXT,
}


def whole_schema(crd: Crd) -> Schema:
    """Return the schema of a whole object in a file: the CRD's, with all fields of `metadata`.

    `status` is not part of it: the API server ignores a file's status.
    """
    own = crd.schema.properties.get("metadata", _ANYTHING)
    name = dataclasses.replace(own.properties.get("name", _NAME), description=_NAME.description)
    metadata = dataclasses.replace(
        own,
        properties={**_OBJECT_META, **own.properties, "name": name},
        required=("name",),
        description="the job's name and labels",
    )
    kept = {key: child for key, child in crd.schema.properties.items() if key != "status"}
    return dataclasses.replace(
        crd.schema,
        properties={**kept, "metadata": metadata},
        required=(*dict.fromkeys(("metadata", *crd.schema.required)),),
    )


def is_foreign(body: Mapping[str, Any], crd: Crd) -> bool:
    """Return whether a document is clearly an object of another API, and no misspelt ElasticJob."""
    version, kind = body.get("apiVersion"), body.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str) or not version or not kind:
        return False
    group = version.partition("/")[0]
    return nearest(kind, [crd.kind]) is None and nearest(group, [crd.group]) is None


def check_type(body: Mapping[str, Any], crd: Crd) -> Iterator[Problem]:
    """Yield faults of `apiVersion` and `kind`; `structure` reports a value that is no text."""
    for name, wanted in (("apiVersion", crd.api_version), ("kind", crd.kind)):
        given = body.get(name)
        if given is None:
            yield Problem(
                path=(name,),
                kind=ProblemKind.REQUIRED,
                fault="must be set",
                remedy=f"write {name}: {wanted}",
            )
        elif isinstance(given, str) and given != wanted:
            yield Problem(
                path=(name,),
                kind=ProblemKind.CHOICE,
                value=show_value(given),
                fault="is not known here",
                remedy=f"write {name}: {wanted}",
            )
