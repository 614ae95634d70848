"""Job files for tests: a shortest job with fields laid over it, and what is wrong with a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from holdfast_operator.crd import load_crd
from holdfast_operator.spec.admission import ElasticJob, read_job
from holdfast_operator.spec.problems import InvalidJobError, Problem, ProblemKind

CRD = load_crd()
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "c"}]}}
_SHORTEST: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "t"},
    "spec": {
        "replicas": 4,
        "worker": {
            "template": {
                "spec": {"containers": [{"name": "worker", "image": "x", "command": ["true"]}]}
            }
        },
    },
}


def job(job_name: str = "t", /, **fields: Any) -> dict[str, Any]:
    """The shortest job with fields under `spec` set; `a__b` is the field b of a."""
    body = copy.deepcopy(_SHORTEST)
    body["metadata"]["name"] = job_name
    for path, value in fields.items():
        place = body["spec"]
        *groups, last = path.split("__")
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return body


def read(body: dict[str, Any]) -> ElasticJob:
    """The checked job of an object."""
    return read_job(json.dumps(body), CRD)


def problems_of(text: str) -> tuple[Problem, ...]:
    """Every problem of a file's text; empty where it is accepted."""
    try:
        read_job(text, CRD, "job.yaml")
    except InvalidJobError as error:
        return error.problems
    return ()


def faults_of(body: dict[str, Any], *, built: Iterable[ProblemKind] = ()) -> list[Problem]:
    """Every problem that a cluster would have with an object, too.

    Fields of features that are not there yet are no fault for a cluster.
    """
    found = problems_of(json.dumps(body))
    return [one for one in found if one.kind is not ProblemKind.UNAVAILABLE or one.kind in built]


def fields_of(problems: Iterable[Problem]) -> list[str]:
    """Return the fields that the problems are about."""
    return [problem.field for problem in problems]


# Compiles the rules before any test: cel-python raises the interpreter's recursion limit then,
# and Hypothesis minds that during a test.
read(job())
