"""Old names of fields: taken as the new ones, with a warning, and without any effect on a job."""

from __future__ import annotations

import pytest

from holdfast_operator.master_spec import master_spec
from holdfast_operator.pods.revision import revision_name, templates_of
from holdfast_operator.spec.job import SpecVersion
from holdfast_operator.spec.renamed_fields import RENAMED, deprecations
from holdfast_operator.spec.schema import parse_crd, walk
from holdfast_wire.v1 import spec_pb2
from jobs.job_files import CRD, job, read

_OLD = {"localSGD": {"replicaNodes": 2}}
_NEW = {"replicaPolicy": {"nodesPerReplica": 2}}


@pytest.mark.parametrize("fields", [_OLD, _OLD | _NEW], ids=["the old one", "both"])
def test_an_old_name_makes_the_same_job_as_the_new_one(fields: dict[str, dict[str, int]]) -> None:
    """Nothing that a decision, a pod or a master sees tells the names apart."""
    old, new = read(job(**fields)).spec, read(job(**_NEW)).spec
    assert old == new
    assert master_spec(old, SpecVersion(1)) == master_spec(new, SpecVersion(1))


def test_an_operator_with_the_new_name_restarts_no_job_of_an_earlier_one() -> None:
    """Revision of the templates and number of the wire's field are those from before the change."""
    spec = read(job(**_OLD)).spec
    assert revision_name("t", templates_of(spec)) == "t-0f24b077f4"
    field = spec_pb2.MasterSpec.DESCRIPTOR.fields_by_name["nodes_per_replica"]
    assert (field.number, field.type) == (21, field.TYPE_UINT32)


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        (_OLD, "write it there, and delete spec.localSGD"),
        (_OLD | _NEW, "delete spec.localSGD"),
    ],
)
def test_a_file_with_an_old_name_gets_a_notice(
    fields: dict[str, dict[str, int]], remedy: str
) -> None:
    """It has field, value, new name and remedy, and is said once."""
    told = (
        "spec.localSGD.replicaNodes: 2 is deprecated and taken as "
        f"spec.replicaPolicy.nodesPerReplica; {remedy}: the next minor release may refuse it"
    )
    made = read(job(**fields))
    assert made.notices == (told,)
    assert tuple(deprecations(made.body)) == (told,)


def test_a_file_with_the_new_name_gets_no_notice() -> None:
    """Nor does one without replicas."""
    assert read(job(**_NEW)).notices == read(job()).notices == ()


def test_both_names_are_in_the_crd_and_the_old_one_is_called_deprecated() -> None:
    """`kubectl explain` shows it, in the field and in a group that has nothing else."""
    spec = parse_crd(CRD).schema.properties["spec"]
    known = {".".join(map(str, path)): node for path, node in walk(spec)}
    for one in RENAMED:
        assert known[one.old].description.startswith(f"Deprecated: taken as {one.new}")
        group = known[one.old.partition(".")[0]]
        assert len(group.properties) > 1 or group.description.startswith("Deprecated")
        assert known[one.new].kind is known[one.old].kind
        assert (known[one.new].least, known[one.new].most) == (
            known[one.old].least,
            known[one.old].most,
        )
