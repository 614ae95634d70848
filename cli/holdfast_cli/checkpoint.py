"""`holdfast checkpoint`: a save on request, and tools for checkpoints on storage.

The tools belong to the SDK, which alone knows the format of its files; they run in a process of
their own. Only their options are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast_cli.arguments import complete_job, output_option
from holdfast_cli.sdk_tool import call


class JobOrTool(click.Group):
    """`checkpoint JOB` saves; a job that is called as a tool is saved by `checkpoint save JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `save` before the name of a job."""
        known = {*ctx.help_option_names, *self.commands}
        return super().parse_args(ctx, args if not args or args[0] in known else ["save", *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer jobs beside the tools."""
        jobs = complete_job(ctx, click.Argument(["job"]), incomplete)
        return [*super().shell_complete(ctx, incomplete), *map(CompletionItem, jobs)]


@click.group(cls=JobOrTool, subcommand_metavar="JOB [--timeout SECONDS] | TOOL PATH")
def checkpoint() -> None:
    """Have all ranks of JOB save after the same step; or look at a checkpoint on storage.

    With JOB the command waits until the step is on storage: 300 s, or --timeout SECONDS. The script
    must save with holdfast.Checkpointer. `holdfast checkpoint save --help` lists every option.
    """


_KEYS = (
    click.option("--model", metavar="KEY", default="", help="Key of the model in a file of torch."),
    click.option(
        "--optimizer", metavar="KEY", default="", help="Key of the optimizer in a file of torch."
    ),
)
_MODEL_ONLY = click.option("--model-only", is_flag=True, help="Only the model.")


def _with_keys(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where a script has put model and optimizer."""
    for option in reversed(_KEYS):
        command = option(command)
    return command


def _words(**options: str | bool | int | None) -> list[str]:
    """Return options for a tool, without those that were not given."""
    given = [(f"--{name.replace('_', '-')}", value) for name, value in options.items() if value]
    return [word for name, value in given for word in (name, str(value))[: 2 - (value is True)]]


def _tool(name: str, summary: str) -> Callable[..., Any]:
    @checkpoint.command(name, help=summary)
    @click.argument("path", type=click.Path())
    @_with_keys
    @output_option
    def look(path: str, output: str, **keys: str) -> None:
        call("flash.tools.inspect", name, path, *_words(json=output == "json", **keys))

    return look


inspect = _tool(
    "inspect",
    "List the steps in PATH; of a single step every tensor with its type, shape, size and ranks. "
    "Of a checkpoint of DeepSpeed, Megatron, torch or safetensors: framework, layout, sizes.",
)
verify = _tool(
    "verify",
    "Compare every hash of the steps in PATH, or every checksum of a foreign checkpoint. "
    "Exit codes: 0 whole, 7 a step is damaged.",
)


@checkpoint.command()
@click.argument("step", type=click.Path(file_okay=False))
@click.argument("other", type=click.Path(file_okay=False))
def diff(step: str, other: str) -> None:
    """List the differences between two steps, of worlds of any size.

    STEP and OTHER are directories step_N, of one directory or of two. Exit codes: 0 the same bit
    for bit, 9 different.
    """
    call("flash.tools.diff", step, other, needs="torch")


@checkpoint.command()
@click.argument("step", type=click.Path(file_okay=False))
@click.argument("file", type=click.Path(dir_okay=False))
@_MODEL_ONLY
def export(step: str, file: str, *, model_only: bool) -> None:
    """Write a whole step into FILE, for torch.load on any machine.

    STEP is a directory step_N, saved by any number of ranks. The same as `convert --to torch`.
    """
    call("flash.tools.convert", "export", step, file, *_words(model_only=model_only), needs="torch")


@checkpoint.command("import")
@click.argument("source", type=click.Path())
@click.argument("path", type=click.Path(file_okay=False))
@click.option(
    "--step", type=click.IntRange(min=1), required=True, help="Number that load() returns."
)
@_with_keys
def take_in(source: str, path: str, step: int, **keys: str) -> None:
    """Make a checkpoint in PATH, a directory without any, from a foreign one.

    SOURCE is of any format that `convert` reads, such as a file of torch.save with a model's
    state_dict (or with "model" and others), or a directory of torch.distributed.checkpoint.
    """
    call("flash.tools.convert", "import", source, path, *_words(step=step, **keys), needs="torch")


class _Convert(click.Command):
    """A command whose `--model` was a flag once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the flag's successor where `--model` has no key."""
        try:
            return super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            if error.option_name != "--model":
                raise
            said = f"{error.message} The model alone is converted with --model-only."
            raise click.BadOptionUsage(error.option_name, said, ctx) from error


@checkpoint.command(cls=_Convert)
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "--to",
    type=click.Choice(
        ["holdfast", "safetensors", "deepspeed-universal", "deepspeed-universal-0.3", "torch"]
    ),
    default="holdfast",
    show_default=True,
    help="Format of TARGET.",
)
@click.option(
    "--step", type=click.IntRange(min=1), help="Number that load() returns; else SOURCE's own."
)
@_MODEL_ONLY
@_with_keys
def convert(source: str, target: str, *, to: str, **options: Any) -> None:
    """Write a checkpoint in another format, exactly, one tensor at a time.

    SOURCE is of DeepSpeed (native or universal), Megatron (torch_dist), torch (torch.save,
    torch.distributed.checkpoint or torch_checkpointing), safetensors, or a step_N of Holdfast; its
    format is recognised.
    Nothing in it is run. TARGET is a directory of checkpoints without any; with --to a new
    directory, of --to torch a new file. If a file is damaged or missing, nothing is written.
    """
    words = "convert", source, target, "--to", to, *_words(**options)
    call("flash.tools.convert", *words, needs="torch")
