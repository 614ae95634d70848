"""`holdfast`: the commands, their options, and the exit codes.

Each command is a call to the job's master and a way to show the answer. Deciding is the master's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from holdfast_cli import checkpoints, journal, render, watching
from holdfast_cli.arguments import (
    cluster_options,
    complete_job,
    find_place,
    output_option,
    place_argument,
)
from holdfast_cli.cleaning import clean
from holdfast_cli.client import JobClient
from holdfast_cli.failures import EXIT_CODES, BadInputError, CliError, JobFailedError
from holdfast_cli.listing import list_jobs
from holdfast_cli.output import UNREAD, abandon
from holdfast_cli.place import Place
from holdfast_wire import variables
from holdfast_wire.messages import (
    DrainNodeRequest,
    DumpStacksRequest,
    GetGoodputRequest,
    GetJobRequest,
    JobPhase,
    ListNodesRequest,
    RestartWorkerRequest,
    ScaleRequest,
    StopJobRequest,
    TriggerCheckpointRequest,
)

_STACKS_TIMEOUT_S = 30.0
LONGEST_S = 3600.0
"""That a master waits for a checkpoint."""
_ANSWER_S = 10.0
"""For an answer on its way, the master's own 'not in time' too."""
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
    for notice in variables.unknown(os.environ):
        click.echo(f"holdfast: {notice}", err=True)


def _ask(place: Place, request: object, timeout_s: float = 10.0) -> Any:
    with JobClient(place) as client:
        return client.call(request, timeout_s)


def _show(output: str, answer: object, text: Callable[[], str]) -> None:
    click.echo(render.to_json(answer) if output == "json" else text())


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--detach", is_flag=True, help="Start the job and return; it goes on without you.")
@click.option("--logs", is_flag=True, help="Also show what the training processes print.")
@click.option(
    "--chaos",
    metavar="seed=N,mtbf=SECONDS[,most=N][,faults=KIND+…][,peace=JOB]",
    help="Run it twice: in peace, then with random faults; compare samples and losses.",
)
@click.option("--supervise", is_flag=True, hidden=True)
def run(file: Path, detach: bool, logs: bool, chaos: str | None, supervise: bool) -> None:
    """Run the ElasticJob in FILE on this machine: one agent process for each replica."""
    # Imported here: the runner reads the CRD and needs grpc.aio, which the other commands do not.
    from holdfast_cli.runner.start import RunOptions, run_job

    if chaos is not None:
        from holdfast_cli.chaos.run import run_with_chaos

        if detach:
            raise BadInputError("--chaos and --detach cannot go together; drop one of them")
        sys.exit(run_with_chaos(file, chaos, os.environ))
    if detach and logs:
        raise BadInputError(
            "--detach and --logs cannot go together: nobody would see them; the job's directory "
            "has them under logs/"
        )
    options = RunOptions(detach=detach, logs=logs, supervised=supervise)
    sys.exit(run_job(file, options, os.environ))


@main.command()
@place_argument
@output_option
def watch(place: Place, output: str) -> None:
    """Follow JOB: world, round, step, loss and every event with its reason; JSON: a line each."""
    with watching.choose_view(output) as view:
        last = watching.Follower(place, view).run()
    if last.phase is JobPhase.FAILED:
        raise JobFailedError(f"job {place.name} failed: {last.reason}: {last.text}")


@main.command()
@click.argument("job", required=False, shell_complete=complete_job)
@cluster_options
@output_option
def status(job: str | None, where: Mapping[str, str], output: str) -> None:
    """Show where JOB is; without JOB, list the jobs of this machine, or of the namespace."""
    if job is None:
        _list_jobs(where, output)
        return
    with find_place(os.environ, job, where) as place:
        answer = _ask(place, GetJobRequest())
    _show(output, answer.status, lambda: render.status_table(answer.status))


def _list_jobs(where: Mapping[str, str], output: str) -> None:
    if where:
        from holdfast_cli.cluster.listing import HEADER, list_there, row

        there = list_there(os.environ, where)
        _show(output, there, lambda: render.columns(HEADER, [row(job) for job in there]))
        return
    jobs = list_jobs(os.environ)
    rows = [(job.name, job.state, job.job_file, job.directory) for job in jobs]
    _show(output, jobs, lambda: render.columns(("JOB", "STATE", "FILE", "DIRECTORY"), rows))


@main.command()
@place_argument
@output_option
def nodes(place: Place, output: str) -> None:
    """List the nodes of JOB: state, ranks, step, process ids."""
    answer = _ask(place, ListNodesRequest())
    _show(output, answer.nodes, lambda: render.nodes_table(answer.nodes))


@main.command()
@place_argument
@click.option(
    "--after",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Only events after this sequence.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="At most this many, the newest.",
)
@output_option
def events(place: Place, after: int, limit: int, output: str) -> None:
    """List what happened to JOB and what was decided, each with its reason."""
    with JobClient(place) as client:
        answer = client.events(after, limit)
    _show(output, answer.events, lambda: render.events_table(answer.events))


@main.command()
@place_argument
@output_option
def goodput(place: Place, output: str) -> None:
    """Show where every node-second of JOB went, and what each incident cost."""
    answer = _ask(place, GetGoodputRequest())
    _show(output, answer, lambda: render.goodput_table(answer))


@main.command()
@place_argument
@click.argument("replicas", type=click.IntRange(1, 2**31 - 1))
@_reason
@output_option
def scale(place: Place, replicas: int, reason: str, output: str) -> None:
    """Change JOB to REPLICAS nodes; a script with the SDK loses no step."""
    answer = _ask(place, ScaleRequest(replicas=replicas, reason=reason), timeout_s=30.0)
    text = f"{place.name} scales to {replicas} replicas (generation {answer.generation})"
    _show(output, answer, lambda: text)


@main.command()
@place_argument
@click.option("--node", type=_RANK, help="Replace the agent of this node rank.")
@_reason
@output_option
def restart(place: Place, node: int | None, reason: str, output: str) -> None:
    """Start a new round of JOB in place, or replace one node."""
    answer = _ask(place, RestartWorkerRequest(node_rank=node, reason=reason))
    what = f"node {node} is being replaced" if node is not None else "a new round begins"
    text = f"{place.name}: {what}; the round before was {answer.round}"
    _show(output, answer, lambda: text)


@main.command()
@place_argument
@click.argument("node", type=_RANK)
@_reason
@output_option
def drain(place: Place, node: int, reason: str, output: str) -> None:
    """Move JOB off NODE (a node rank) at a step boundary, then release it."""
    answer = _ask(place, DrainNodeRequest(node_rank=node, reason=reason))
    _show(output, answer, lambda: f"{place.name}: {answer.text}")


@checkpoints.checkpoint.command()
@place_argument
@click.option(
    "--timeout",
    type=click.FloatRange(0, LONGEST_S, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait until it is on storage.",
)
@_reason
@output_option
def save(place: Place, timeout: float, reason: str, output: str) -> None:
    """What `checkpoint JOB` does: all ranks save after one step; waits until it is on storage."""
    request = TriggerCheckpointRequest(reason=reason, timeout_seconds=timeout)
    answer = _ask(place, request, timeout_s=timeout + _ANSWER_S)
    _show(output, answer, lambda: f"{place.name}: step {answer.step} is in {answer.path}")


@main.command()
@place_argument
@click.option("--node", type=_RANK, help="Only this node rank.")
@output_option
def stacks(place: Place, node: int | None, output: str) -> None:
    """Print the Python stacks of every rank of JOB."""
    answer = _ask(place, DumpStacksRequest(node_rank=node), _STACKS_TIMEOUT_S)
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
def stop(place: Place, now: bool, reason: str, output: str) -> None:
    """End JOB: a checkpoint at a step boundary where the script can, then SIGTERM."""
    with JobClient(place) as client:
        client.call(StopJobRequest(reason=reason, now=now))
        ended = client.ended
    text = f"{place.name} is stopping; `holdfast watch {place.hint}` shows how far it is"
    if ended is not None:
        how = render.phase_name(ended.status.phase)
        text = f"{place.name} has ended already: {how}; `holdfast status {place.hint}` shows how"
    _show(output, {"job": place.name, "ended": ended is not None}, lambda: text)


main.add_command(checkpoints.checkpoint)
main.add_command(journal.journal)
main.add_command(journal.replay)


if __name__ == "__main__":
    main()
