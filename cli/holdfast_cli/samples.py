"""`holdfast samples`: how often a training has used each sample. The SDK's tool counts."""

from __future__ import annotations

import click

from holdfast_cli.arguments import output_option
from holdfast_cli.sdk_tool import call


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(), metavar="FOLDER...")
@output_option
def samples(folders: tuple[str, ...], output: str) -> None:
    """Count how often a training has used each sample, by epoch.

    FOLDER is where its ranks have written their records, as BatchOptions(record=FOLDER) says; of a
    training over several jobs: a folder for each, in their order. Exit codes: 0 each was used
    once, 10 some were lost or used more than once.
    """
    call("data.samples_report", *folders, *(["--json"] if output == "json" else []))
