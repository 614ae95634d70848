"""Reads the CRD that is packaged with the operator; the one source of every check of a job."""

from __future__ import annotations

from importlib import resources


def load_crd() -> str:
    """Return the text of the packaged CustomResourceDefinition (`elasticjobs.yaml`)."""
    return resources.files(__package__).joinpath("elasticjobs.yaml").read_text(encoding="utf-8")
