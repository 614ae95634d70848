"""Spec of a job: an ElasticJob's text, checked, with its defaults, as typed values.

Pure: no clock, no files, no cluster. `admission` is the entry, `job` the typed spec, `problems` the
form of a fault, `availability` the features that this version lacks, `renamed_fields` the old names
that it still takes. Does not belong here: decisions from a spec (`plan`), pods (`pods`).
"""

from holdfast_operator.spec.admission import (
    ElasticJob,
    change_job,
    check_update,
    from_object,
    not_supported,
    read_job,
)
from holdfast_operator.spec.job import JobSpec, Size
from holdfast_operator.spec.problems import InvalidJobError, Problem

__all__ = [
    "ElasticJob",
    "InvalidJobError",
    "JobSpec",
    "Problem",
    "Size",
    "change_job",
    "check_update",
    "from_object",
    "not_supported",
    "read_job",
]
