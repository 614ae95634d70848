"""`holdfast`: the commands, their options, and the exit codes.

Each command is a call to the job's master, and shows the answer. The master decides.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from holdfast_cli import check, checkpoint, incidents, journal, live_view, render, samples
from holdfast_cli.arguments import (
    cluster_options,
    complete_job,
    find_place,
    hosts_options,
    output_option,
    place_argument,
)
from holdfast_cli.client import JobClient
from holdfast_cli.errors import EXIT_CODES, BadInputError, CliError, JobFailedError
from holdfast_cli.output import UNREAD, abandon
from holdfast_cli.target import JobTarget, list_jobs
from holdfast_cli.terminal_text import clean
from holdfast_wire import environment
from holdfast_wire import messages as wire

_WATCH_SECONDS = 2.0
"""Between two screens of `holdfast health --watch`."""
_STACKS_TIMEOUT_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
"""Longest time that a master waits for a checkpoint, s."""
_ANSWER_SECONDS = 10.0
"""Time for an answer to arrive, s; a master's own time-out included."""
_EPILOG = "Exit codes: " + "; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()) + "."
_RANK = click.IntRange(0, 2**31 - 1)
_reason = click.option("--reason", default="", help="Recorded in the job's events.")


class _Commands(click.Group):
    """Turns our errors into one line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            click.echo(f"holdfast: {clean(str(error), lines=True)}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(130)
        except BrokenPipeError:
            abandon()
            sys.exit(UNREAD)


@click.group(
    cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="holdfast")
def main() -> None:
    """Run ElasticJobs on this machine, and watch and steer them through their masters."""
    for notice in environment.unknown(os.environ):
        click.echo(f"holdfast: {notice}", err=True)


def _ask(place: JobTarget, request: object, timeout_s: float = 10.0) -> Any:
    with JobClient(place) as client:
        return client.call(request, timeout_s)


def _show(output: str, answer: object, text: Callable[[], str]) -> None:
    click.echo(render.to_json(answer) if output == "json" else text())


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--detach", is_flag=True, help="Start the job and return; it goes on without you.")
@click.option("--logs", is_flag=True, help="Also show the output of the training processes.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Serve the job's metrics for Prometheus on this port of this machine.",
)
@click.option(
    "--chaos",
    metavar="seed=N,mtbf=SECONDS[,most=N][,faults=KIND+…][,peace=JOB]",
    help="Run it twice: undisturbed, then with random faults; compare samples and losses.",
)
@hosts_options
@click.option("--supervise", is_flag=True, hidden=True)
def run(
    file: Path,
    detach: bool,
    logs: bool,
    metrics_port: int | None,
    chaos: str | None,
    supervise: bool,
    elsewhere: Mapping[str, str],
) -> None:
    """Run the ElasticJob in FILE on this machine: one agent process for each replica."""
    # Imported here: the runner reads the CRD and needs grpc.aio, which the other commands do not.
    from holdfast_cli.runner.hosts import read_hosts
    from holdfast_cli.runner.start import RunOptions, run_job

    if chaos is not None:
        from holdfast_cli.chaos.run import run_with_chaos

        if detach or elsewhere or metrics_port is not None:
            other = "--detach" if detach else "--hosts" if elsewhere else "--metrics-port"
            raise BadInputError(f"--chaos and {other} cannot go together; drop one of them")
        sys.exit(run_with_chaos(file, chaos, os.environ))
    if elsewhere and detach:
        raise BadInputError("--hosts and --detach cannot go together; drop one of them")
    if detach and logs:
        raise BadInputError(
            "--detach and --logs cannot go together: nobody would see them; the job's directory "
            "has them under logs/"
        )
    options = RunOptions(
        detach=detach,
        logs=logs,
        supervised=supervise,
        metrics_port=metrics_port,
        hosts=read_hosts(**elsewhere) if elsewhere else None,
    )
    sys.exit(run_job(file, options, os.environ))


@main.command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write it here, not to standard output."
)
@click.option("--force", is_flag=True, help="Leave out what is refused, with a comment.")
def convert(files: tuple[Path, ...], output: Path | None, *, force: bool) -> None:
    """Write the PyTorchJob, TrainJob or DLRover ElasticJob in FILE as an ElasticJob.

    A TrainJob needs its runtime, in the same file or a further one. Each field is mapped, or left
    out with a comment that says why, or refused with the reason: then nothing is written.
    """
    from holdfast_cli.convert.command import convert_files

    convert_files(files, output, force=force)


@main.command()
@place_argument
@output_option
def watch(place: JobTarget, output: str) -> None:
    """Follow JOB: world, round, step, loss and every event with its reason; JSON: a line each."""
    with live_view.choose_view(output) as view:
        last = live_view.Follower(place, view).run()
    if last.phase is wire.JobPhase.FAILED:
        how = "was stopped" if render.was_stopped(last) else "failed"
        raise JobFailedError(f"job {place.name} {how}: {last.reason}: {last.text}")


@main.command()
@click.argument("job", required=False, shell_complete=complete_job)
@cluster_options
@output_option
def status(job: str | None, where: Mapping[str, str], output: str) -> None:
    """Show the state of JOB; without JOB, list the jobs of this machine, or of the namespace."""
    if job is None:
        _list_jobs(where, output)
        return
    with find_place(os.environ, job, where) as place, JobClient(place) as client:
        answer, ended = client.call(wire.GetJobRequest()), client.ended
    unkept = ended.unkept if ended is not None else frozenset[str]()
    shown = render.to_plain(answer.status)
    if answer.replicas:
        shown["replica_states"] = render.to_plain(answer.replicas)
    _show(output, shown, lambda: render.status_screen(answer, unkept))


def _list_jobs(where: Mapping[str, str], output: str) -> None:
    if where:
        from holdfast_cli.cluster.find import HEADER, list_there, row

        there = list_there(os.environ, where)
        _show(output, there, lambda: render.columns(HEADER, [row(job) for job in there]))
        return
    jobs = list_jobs(os.environ)
    rows = [(job.name, job.state, job.job_file, job.directory) for job in jobs]
    _show(output, jobs, lambda: render.columns(("JOB", "STATE", "FILE", "DIRECTORY"), rows))


@main.command()
@place_argument
@output_option
@click.option("--history", is_flag=True, help="What spoke against each host of the job.")
def nodes(place: JobTarget, output: str, *, history: bool) -> None:
    """List the nodes of JOB: state, ranks, step, process ids."""
    answer = _ask(place, wire.ListNodesRequest())
    if history:
        _show(output, answer.history, lambda: render.history_table(answer.history))
        return
    _show(output, answer.nodes, lambda: render.nodes_table(answer.nodes))


@main.command()
@place_argument
@click.option(
    "--after",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Only events after this sequence number.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Most events to list; the newest are kept.",
)
@output_option
def events(place: JobTarget, after: int, limit: int, output: str) -> None:
    """List the events and decisions of JOB, each with its reason."""
    with JobClient(place) as client:
        answer = client.events(after, limit)
    _show(output, answer.events, lambda: render.events_table(answer.events))


@main.command()
@place_argument
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until Ctrl-C.")
@output_option
def health(place: JobTarget, output: str, *, watch: bool) -> None:
    """Show whether JOB hangs, who is slow, each rank's lag, and why nobody is judged."""
    while True:
        with JobClient(place) as client:
            answer, over = client.call(wire.GetHealthRequest()), client.ended is not None
        if watch:
            click.echo(_watched(output, answer))
        else:
            _show(output, answer, partial(render.health_screen, answer))
        if over or not watch:
            return
        time.sleep(_WATCH_SECONDS)


def _watched(output: str, answer: Any) -> str:
    """Return one screen of several; a terminal shows it in place of the one before."""
    if output == "json":
        return render.to_json(answer, indent=None)
    if sys.stdout.isatty():
        click.clear()
        return render.health_screen(answer)
    return f"--- {render.clock(time.time())}\n{render.health_screen(answer)}"


@main.command()
@place_argument
@output_option
def goodput(place: JobTarget, output: str) -> None:
    """Show the use of every node-second of JOB, and the cost of each incident."""
    answer = _ask(place, wire.GetGoodputRequest())
    _show(output, answer, lambda: render.goodput_table(answer))


@main.command()
@place_argument
@click.argument("replicas", type=click.IntRange(1, 2**31 - 1))
@_reason
@output_option
def scale(place: JobTarget, replicas: int, reason: str, output: str) -> None:
    """Change JOB to REPLICAS nodes; a script with the SDK loses no step.

    Nodes that were drained come back where their ranks are wanted, also at an unchanged size.
    """
    answer = _ask(place, wire.ScaleRequest(replicas=replicas, reason=reason), timeout_s=30.0)
    scales = f"scales to {render.counted(replicas, 'replica')}"
    text = f"{place.name}: {answer.text}" if answer.text else f"{place.name} {scales}"
    text += f" (generation {answer.generation})"
    _show(output, answer, lambda: text)


@main.command()
@place_argument
@click.option("--node", type=_RANK, help="Replace the agent of this node rank.")
@_reason
@output_option
def restart(place: JobTarget, node: int | None, reason: str, output: str) -> None:
    """Start a new round of JOB in place, or replace one node.

    Ranks with the SDK save and stop after the same step first; without it they are killed at once.
    """
    answer = _ask(place, wire.RestartWorkerRequest(node_rank=node, reason=reason))
    what = f"node {node} is being replaced" if node is not None else "a new round begins"
    text = f"{place.name}: {what}; the round before was {answer.round}"
    _show(output, answer, lambda: text)


@main.command()
@place_argument
@click.argument("node", type=_RANK)
@_reason
@output_option
def drain(place: JobTarget, node: int, reason: str, output: str) -> None:
    """Move JOB off NODE (a node rank) at a step boundary, then release it.

    It is shown as Drained and stays away; `restart JOB --node NODE`, or `scale`, brings it back.
    """
    answer = _ask(place, wire.DrainNodeRequest(node_rank=node, reason=reason))
    _show(output, answer, lambda: f"{place.name}: {answer.text}")


@checkpoint.checkpoint.command()
@place_argument
@click.option(
    "--timeout",
    type=click.FloatRange(0, LONGEST_SECONDS, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait until it is on storage.",
)
@_reason
@output_option
def save(place: JobTarget, timeout: float, reason: str, output: str) -> None:
    """Carry out `checkpoint JOB`: all ranks save after one step; wait until it is on storage."""
    request = wire.TriggerCheckpointRequest(reason=reason, timeout_seconds=timeout)
    answer = _ask(place, request, timeout_s=timeout + _ANSWER_SECONDS)
    _show(output, answer, lambda: f"{place.name}: step {answer.step} is in {answer.path}")


@main.command()
@place_argument
@click.option("--node", type=_RANK, help="Only this node rank.")
@output_option
def stacks(place: JobTarget, node: int | None, output: str) -> None:
    """Print the Python stacks of every rank of JOB."""
    answer = _ask(place, wire.DumpStacksRequest(node_rank=node), _STACKS_TIMEOUT_SECONDS)
    _show(output, answer.nodes, lambda: _stacks_text(answer.nodes))


def _stacks_text(nodes_: Any) -> str:
    parts = []
    for node in nodes_:
        if node.error:
            parts.append(f"node {node.node_rank}: {node.error}")
        for stack in node.stacks:
            head = f"node {node.node_rank}  rank {stack.rank}  pid {stack.pid}"
            parts.append(f"{head}\n{clean(stack.text.rstrip(), lines=True)}")
    return "\n\n".join(parts)


@main.command()
@place_argument
@click.option("--now", is_flag=True, help="Do not wait for a checkpoint at a step boundary.")
@_reason
@output_option
def stop(place: JobTarget, now: bool, reason: str, output: str) -> None:
    """End JOB: a checkpoint at a step boundary where the script can, then SIGTERM."""
    with JobClient(place) as client:
        client.call(wire.StopJobRequest(reason=reason, now=now))
        ended = client.ended
    text = f"{place.name} is stopping; `holdfast watch {place.hint}` shows how far it is"
    if ended is not None:
        how = render.phase_name(ended.status)
        text = f"{place.name} has ended already: {how}; `holdfast status {place.hint}` shows how"
    _show(output, {"job": place.name, "ended": ended is not None}, lambda: text)


main.add_command(check.check)
main.add_command(checkpoint.checkpoint)
main.add_command(incidents.incidents)
main.add_command(incidents.incident)
main.add_command(journal.journal)
main.add_command(journal.replay)
main.add_command(samples.samples)


if __name__ == "__main__":
    main()
