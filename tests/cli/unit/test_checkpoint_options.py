"""Options of `holdfast checkpoint` that had another meaning."""

from __future__ import annotations

from click.testing import CliRunner

from holdfast_cli.main import main


def test_model_without_a_key_names_the_flag_for_the_model_alone() -> None:
    """`--model` was that flag."""
    done = CliRunner().invoke(main, ["checkpoint", "convert", "step_3", "out", "--model"])
    assert done.exit_code == 2
    assert "--model-only" in done.output
