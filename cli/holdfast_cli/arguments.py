"""Arguments and options that several commands share, with their shell completion."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from holdfast_cli.errors import JobNotFoundError
from holdfast_cli.job_directory import find_job, job_names
from holdfast_cli.target import JobTarget, LocalPlace

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs (a number that is not finite is null).",
)


def complete_job(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of this machine's jobs that begin with the incomplete word."""
    return [name for name in job_names(os.environ) if name.startswith(incomplete)]


def job_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument JOB."""
    return click.argument("job", shell_complete=complete_job)(command)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose a cluster, as the mapping `where`; empty: none."""

    @functools.wraps(command)
    def chosen(*, namespace: str, context: str, kubeconfig: str, **arguments: Any) -> None:
        given = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
        command(where={name: text for name, text in given.items() if text}, **arguments)

    options = (
        click.option("-n", "--namespace", default="", help="Namespace of the job, in a cluster."),
        click.option("--context", default="", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig", default="", help="Path of a kubeconfig, instead of $KUBECONFIG."
        ),
    )
    for option in reversed(options):
        chosen = option(chosen)
    return chosen


def hosts_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of other hosts, as the mapping `elsewhere`; empty: none."""

    @functools.wraps(command)
    def chosen(*, hosts: str, launcher: str, address: str, **arguments: Any) -> None:
        given = {"names": hosts, "launcher": launcher, "address": address}
        command(elsewhere=given if hosts or launcher else {}, **arguments)

    options = (
        click.option(
            "--hosts",
            metavar="NAME[,NAME…]",
            default="",
            help="Run the workers on these hosts, which share a file system with this one.",
        ),
        click.option(
            "--launcher",
            metavar="COMMAND",
            default="",
            help="What starts a program on a host: 'srun --overlap -N1 -n1 -w {host}'.",
        ),
        click.option(
            "--address",
            metavar="ADDRESS",
            default="",
            help="This machine's address for --hosts. Default: that of its name.",
        ),
    )
    for option in reversed(options):
        chosen = option(chosen)
    return chosen


def place_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument JOB and the options that choose a cluster, as `place`."""

    @functools.wraps(command)
    def found(*, job: str, where: Mapping[str, str], **arguments: Any) -> None:
        with find_place(os.environ, job, where) as place:
            command(place=place, **arguments)

    return job_argument(cluster_options(found))


@contextlib.contextmanager
def find_place(
    environ: Mapping[str, str], name: str, where: Mapping[str, str]
) -> Iterator[JobTarget]:
    """Find a job: on this machine; in a cluster if one was chosen, or this machine has none.

    Raises:
        JobNotFoundError: There is no such job.
        BadInputError: the chosen cluster cannot be used.
        MasterUnreachableError: the API server does not answer, or refuses.
    """
    place: JobTarget
    if where:
        # Imported here, as below: most commands are about this machine.
        from holdfast_cli.cluster.find import find_there
        from holdfast_cli.cluster.kubeconfig import Where

        place = find_there(environ, name, Where(**where))
    else:
        try:
            place = LocalPlace(find_job(environ, name))
        except JobNotFoundError as absent:
            from holdfast_cli.cluster.find import find_elsewhere

            place = find_elsewhere(environ, name, absent)
    with contextlib.closing(place):
        yield place
