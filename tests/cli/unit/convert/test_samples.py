"""Jobs as people have them, in the shapes of the examples of Kubeflow and DLRover."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast_cli.main import main
from holdfast_operator.crd import load_crd
from holdfast_operator.spec import read_job
from jobs.foreign_jobs import REFUSED, SAMPLES


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda file: file.stem)
def test_a_job_of_another_operator_becomes_one_that_is_admitted(sample: Path) -> None:
    """Its command starts agents, and its image and resources are those that it had."""
    done = CliRunner().invoke(main, ["convert", str(sample)])
    assert done.exit_code == 0, done.output
    job = read_job(done.output.partition("\n---\n")[0], load_crd())
    (main_container, *_) = job.spec.worker_template["spec"]["containers"]
    assert "holdfast-run" in " ".join(main_container["command"])
    assert main_container["image"].startswith("registry.example/")
    assert "PyTorchJob" not in done.output.partition("\n")[2]


@pytest.mark.parametrize("sample", REFUSED, ids=lambda file: file.stem)
def test_a_job_without_a_counterpart_is_refused_with_its_reason(sample: Path) -> None:
    """The first line of the sample has the words of the refusal: field, value and reason."""
    words = sample.read_text().splitlines()[0].partition("# refused: ")[2]
    done = CliRunner().invoke(main, ["convert", str(sample)])
    assert done.exit_code == 2
    assert words
    assert words in done.output
