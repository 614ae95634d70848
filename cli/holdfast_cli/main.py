"""`holdfast`: the commands, their options, and the exit codes.

Each command is a call to the job's master and a way to show the answer. Deciding is the master's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast_cli import journal, render, watching
from holdfast_cli.arguments import complete_job, job_argument, output_option
from holdfast_cli.cleaning import clean
from holdfast_cli.client import JobClient
from holdfast_cli.failures import EXIT_CODES, BadInputError, CliError, JobFailedError
from holdfast_cli.home import find_job
from holdfast_cli.listing import list_jobs
from holdfast_cli.output import UNREAD, abandon
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
)

_STACKS_TIMEOUT_S = 30.0
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


def _ask(job: str, request: object, timeout_s: float = 10.0) -> Any:
    with JobClient(find_job(os.environ, job)) as client:
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
@job_argument
@output_option
def watch(job: str, output: str) -> None:
    """Follow JOB: world, round, step, loss and every event with its reason; JSON: a line each."""
    home = find_job(os.environ, job)
    with watching.choose_view(output) as view:
        last = watching.Follower(home, view).run()
    if last.phase is JobPhase.FAILED:
        raise JobFailedError(f"job {job} failed: {last.reason}: {last.text}")


@main.command()
@click.argument("job", required=False, shell_complete=complete_job)
@output_option
def status(job: str | None, output: str) -> None:
    """Show where JOB is; without JOB, list the jobs of this machine."""
    if job is None:
        _list_jobs(output)
        return
    answer = _ask(job, GetJobRequest())
    _show(output, answer.status, lambda: render.status_table(answer.status))


def _list_jobs(output: str) -> None:
    jobs = list_jobs(os.environ)
    if output == "json":
        click.echo(render.to_json(jobs))
        return
    rows = [(job.name, job.state, job.job_file, job.directory) for job in jobs]
    click.echo(render.columns(("JOB", "STATE", "FILE", "DIRECTORY"), rows))


@main.command()
@job_argument
@output_option
def nodes(job: str, output: str) -> None:
    """List the nodes of JOB: state, ranks, step, process ids."""
    answer = _ask(job, ListNodesRequest())
    _show(output, answer.nodes, lambda: render.nodes_table(answer.nodes))


@main.command()
@job_argument
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
def events(job: str, after: int, limit: int, output: str) -> None:
    """List what happened to JOB and what was decided, each with its reason."""
    with JobClient(find_job(os.environ, job)) as client:
        answer = client.events(after, limit)
    _show(output, answer.events, lambda: render.events_table(answer.events))


@main.command()
@job_argument
@output_option
def goodput(job: str, output: str) -> None:
    """Show where every node-second of JOB went, and what each incident cost."""
    answer = _ask(job, GetGoodputRequest())
    _show(output, answer, lambda: render.goodput_table(answer))


@main.command()
@job_argument
@click.argument("replicas", type=click.IntRange(1, 2**31 - 1))
@_reason
@output_option
def scale(job: str, replicas: int, reason: str, output: str) -> None:
    """Change JOB to REPLICAS nodes; a script with the SDK loses no step."""
    answer = _ask(job, ScaleRequest(replicas=replicas, reason=reason), timeout_s=30.0)
    text = f"{job} scales to {replicas} replicas (generation {answer.generation})"
    _show(output, answer, lambda: text)


@main.command()
@job_argument
@click.option("--node", type=_RANK, help="Replace the agent of this node rank.")
@_reason
@output_option
def restart(job: str, node: int | None, reason: str, output: str) -> None:
    """Start a new round of JOB in place, or replace one node."""
    answer = _ask(job, RestartWorkerRequest(node_rank=node, reason=reason))
    what = f"node {node} is being replaced" if node is not None else "a new round begins"
    text = f"{job}: {what}; the round before was {answer.round}"
    _show(output, answer, lambda: text)


@main.command()
@job_argument
@click.argument("node", type=_RANK)
@_reason
@output_option
def drain(job: str, node: int, reason: str, output: str) -> None:
    """Move JOB off NODE (a node rank) at a step boundary, then release it."""
    answer = _ask(job, DrainNodeRequest(node_rank=node, reason=reason))
    _show(output, answer, lambda: f"{job}: {answer.text}")


@main.command()
@job_argument
@click.option("--node", type=_RANK, help="Only this node rank.")
@output_option
def stacks(job: str, node: int | None, output: str) -> None:
    """Print the Python stacks of every rank of JOB."""
    answer = _ask(job, DumpStacksRequest(node_rank=node), _STACKS_TIMEOUT_S)
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
@job_argument
@click.option("--now", is_flag=True, help="Do not wait for a checkpoint at a step boundary.")
@_reason
@output_option
def stop(job: str, now: bool, reason: str, output: str) -> None:
    """End JOB: a checkpoint at a step boundary where the script can, then SIGTERM."""
    with JobClient(find_job(os.environ, job)) as client:
        client.call(StopJobRequest(reason=reason, now=now))
        ended = client.ended
    text = f"{job} is stopping; `holdfast watch {job}` shows how far it is"
    if ended is not None:
        how = render.phase_name(ended.status.phase)
        text = f"{job} has ended already: {how}; `holdfast status {job}` shows how"
    _show(output, {"job": job, "ended": ended is not None}, lambda: text)


main.add_command(journal.journal)
main.add_command(journal.replay)


if __name__ == "__main__":
    main()
