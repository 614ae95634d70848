"""The reference page says what the CRD says."""

from __future__ import annotations

import subprocess
import sys

from holdfast_operator.spec.schema import parse_crd, walk
from house.repository import ROOT
from jobs.job_files import CRD

PAGE = ROOT / "docs/reference/elasticjob.md"


def test_the_page_is_what_the_script_writes() -> None:
    """A change of the CRD, or of what is not built, changes the page in the same commit."""
    script = ROOT / "scripts/reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_field_and_rule_is_on_the_page() -> None:
    """Nothing is left out, whatever the script does; templates are shown once."""
    text = PAGE.read_text(encoding="utf-8")
    schema = parse_crd(CRD).schema
    for group in ("spec", "status"):
        for path, _ in walk(schema.properties[group]):
            repeated = "template" in path[:-1] and path[0] != "worker"
            name = ".".join(map(str, path))
            assert repeated or len(path) < 1 or f"`{name}`" in text or f".{name}`" in text, name
    for _, node in walk(schema):
        for rule in node.rules:
            assert rule.message.replace("|", "\\|") in text
