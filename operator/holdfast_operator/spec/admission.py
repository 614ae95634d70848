"""Admission of a job file: its text to a checked ElasticJob, or every fault of it at once.

text → documents → apiVersion and kind → defaults → structure → relations → availability → typed
spec. The cluster's API server does the same from the same CRD before the operator sees a job. It
also has rules of its own for `metadata`, which a job file without one needs here. Pure: the CRD's
text is passed in (`holdfast_operator.crd.load_crd` reads it).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.spec.availability import check_availability
from holdfast_operator.spec.cel_rules import check_relations
from holdfast_operator.spec.job import JobSpec
from holdfast_operator.spec.problems import (
    InvalidJobError,
    Path,
    Problem,
    ProblemKind,
    nearest,
    show_value,
    value_at,
)
from holdfast_operator.spec.renamed_fields import deprecations
from holdfast_operator.spec.schema import Crd, FieldKind, Schema, parse_crd, with_defaults
from holdfast_operator.spec.structure import bound, check_structure, fault_of
from holdfast_operator.spec.yaml_documents import Document, read_documents

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """A checked job."""

    name: str
    namespace: str
    """`default` if the file has none."""
    spec: JobSpec
    body: Mapping[str, Any]
    """The whole object with its defaults, and `status` if it has one."""
    notices: tuple[str, ...] = ()
    """Notices about parts of the file that are not used, or deprecated, for people."""


def read_job(text: str, crd: str, source: str = "job file") -> ElasticJob:
    """Return the one ElasticJob of a YAML or JSON text, checked, with its defaults.

    Objects of other kinds beside it are left out with a notice: they only have a meaning in a
    cluster.

    Args:
        text: The file's content.
        crd: The text of the CustomResourceDefinition.
        source: Name of the file, for errors.

    Raises:
        InvalidJobError: With every fault found, each with its line, field, value and remedy.
    """
    parsed = parse_crd(crd)
    jobs: list[Document] = []
    foreign: list[Document] = []
    for one in read_documents(text, source):
        (foreign if is_foreign(one.body, parsed) else jobs).append(one)
    if len(jobs) != 1:
        raise InvalidJobError(source, [_not_one(jobs, foreign, parsed)])
    (document,) = jobs
    given = {name: value for name, value in document.body.items() if name != "status"}
    body = with_defaults(given, _schema(crd))
    problems = [*check_type(given, parsed), *_faults(given, body, parsed, _schema(crd))]
    if problems:
        located = sorted(map(document.locate, problems), key=lambda problem: problem.line or 0)
        raise InvalidJobError(source, located)
    notices = tuple(
        f"{one.body['kind']} on line {one.line} is not used: only a cluster knows it"
        for one in foreign
    )
    return _job(body, (*deprecations(body), *notices))


def change_job(
    job: ElasticJob,
    crd: str,
    *,
    replicas: int | None = None,
    suspend: bool | None = None,
    status: Mapping[str, Any] | None = None,
) -> ElasticJob:
    """Return the job with another size, or suspended or resumed, checked like an API update.

    Args:
        job: The job as it is.
        crd: The text of the CustomResourceDefinition.
        replicas: Wanted workers; None: as they are.
        suspend: Whether to suspend; None: as it is.
        status: The job's status now; a finished job cannot be changed.

    Raises:
        InvalidJobError: The change breaks a bound or a rule; with every reason.
    """
    old = copy.deepcopy(dict(job.body)) | ({} if status is None else {"status": dict(status)})
    new = copy.deepcopy(old)
    wanted = {"replicas": replicas, "suspend": suspend}
    new["spec"].update({name: value for name, value in wanted.items() if value is not None})
    schema = _schema(crd)
    shown = {name: value for name, value in new.items() if name != "status"}
    problems = list(check_structure(shown, schema)) or list(check_relations(new, schema, old=old))
    if problems:
        raise InvalidJobError(job.name, problems)
    return _job(new, job.notices)


def from_object(body: Mapping[str, Any]) -> ElasticJob:
    """Return the job in an API object, which the API server has checked and given its defaults.

    Nothing is refused here: `not_supported` names the features that this version does not have.
    """
    return _job(body, ())


def not_supported(body: Mapping[str, Any], crd: str) -> list[Problem]:
    """Return the features that an API object asks for and this version does not have."""
    return list(check_availability(body, parse_crd(crd).schema))


def check_update(new: Mapping[str, Any], old: Mapping[str, Any], crd: str) -> list[Problem]:
    """Return every rule of the CRD, transitions too, that the change from `old` to `new` breaks.

    Both are whole objects with their defaults, and with `status` if they have one.
    """
    return list(check_relations(dict(new), _schema(crd), old=dict(old)))


@functools.lru_cache(maxsize=4)
def _schema(crd: str) -> Schema:
    return whole_schema(parse_crd(crd))


def _faults(given: dict[str, Any], body: dict[str, Any], crd: Crd, schema: Schema) -> list[Problem]:
    found = list(check_structure(body, schema))
    found += check_relations(body, schema, found)
    found += _check_patterns(body)
    told = {problem.path for problem in found}
    found += (one for one in check_availability(given, crd.schema) if one.path not in told)
    return found


def _check_patterns(body: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield log patterns that are no regular expressions, which no schema can see."""
    path: Path = ("spec", "failurePolicy", "rules")
    rules = value_at(body, path)
    for at, rule in enumerate(rules if isinstance(rules, list) else ()):
        pattern = value_at(rule, ("onLogPattern",))
        fault = fault_of(pattern) if isinstance(pattern, str) else None
        if fault is not None:
            text = f"is not a regular expression (RE2): {fault}"
            remedy = "correct it; the syntax is RE2's, without look-around and back-references"
            yield bound((*path, at, "onLogPattern"), pattern, text, remedy)


def _not_one(jobs: list[Document], foreign: list[Document], crd: Crd) -> Problem:
    line = None
    if jobs:
        fault, line = f"there are {len(jobs)} objects of kind {crd.kind}", jobs[1].line
    elif foreign:
        kinds = ", ".join(one.body["kind"] for one in foreign)
        fault = f"there is no {crd.kind} in it, only {kinds}"
    else:
        fault = "the file is empty"
    remedy = f"give a file with one document of apiVersion {crd.api_version}, kind {crd.kind}"
    return Problem((), ProblemKind.REQUIRED, fault, remedy, line=line)


def _job(body: Mapping[str, Any], notices: tuple[str, ...]) -> ElasticJob:
    metadata = body["metadata"]
    return ElasticJob(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        spec=JobSpec.from_object(body),
        body=body,
        notices=notices,
    )


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
    """Return True if a document is clearly an object of another API, and no misspelt ElasticJob."""
    version, kind = body.get("apiVersion"), body.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str) or not version or not kind:
        return False
    group = version.partition("/")[0]
    return nearest(kind, [crd.kind]) is None and nearest(group, [crd.group]) is None


def check_type(body: Mapping[str, Any], crd: Crd) -> Iterator[Problem]:
    """Yield faults of `apiVersion` and `kind`; `structure` reports a value that is no text."""
    for name, wanted in (("apiVersion", crd.api_version), ("kind", crd.kind)):
        given, remedy = body.get(name), f"write {name}: {wanted}"
        if given is None:
            yield Problem((name,), ProblemKind.REQUIRED, "must be set", remedy)
        elif isinstance(given, str) and given != wanted:
            shown = show_value(given)
            yield Problem((name,), ProblemKind.CHOICE, "is not known here", remedy, value=shown)
