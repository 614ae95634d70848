"""What a person wants of a job: an ElasticJob's text, checked, with its defaults, as typed values.

Pure: no clock, no files, no cluster. `admission` is the front door, `job` the typed spec,
`problems` how a fault reads, `availability` what this version does not have yet. What follows
from a spec is in `plan` and `build`.
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
