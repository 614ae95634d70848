"""`holdfast run --chaos`: an undisturbed run, the same job with faults, then the comparison.

Belongs here: the order of the three, and the output. Each run has a uid of its own, so a checkpoint
directory named after $(HOLDFAST_JOB_UID) keeps them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast_cli.chaos.compare import TOLERANCE, RankLine, RunComparison, compare, read
from holdfast_cli.chaos.inject import Chaos, Struck
from holdfast_cli.chaos.schedule import Options, parse
from holdfast_cli.errors import BadInputError
from holdfast_cli.job_directory import JobHome, find_job, is_running, job_home
from holdfast_cli.output import say
from holdfast_cli.render import counted
from holdfast_cli.runner.pods import Surroundings
from holdfast_cli.runner.start import RunOptions, read_file, run_job
from holdfast_wire.keys import ENV_STEP_LOG

_NAME_LIMIT = 40
"""Longest name of a job: pods' names have to fit into 63 characters."""
_STEPS = "steps"


def run_with_chaos(file: Path, text: str, environ: Mapping[str, str]) -> int:
    """Run the job of `file` twice; return 0 if both succeeded and did the same work.

    Raises:
        BadInputError: the file or the option is wrong; nothing was started.
        JobNotFoundError: The run to compare with does not exist.
    """
    options = parse(text)
    name = read_file(file).name
    peace = options.peace or f"{name[: _NAME_LIMIT - 6]}-peace"
    if options.peace:
        _check_peace(environ, name, peace)
    else:
        say(f"chaos: first {name} in peace, as {peace}")
        code = _run(file, peace, environ, None)
        if code != 0:
            say(f"chaos: {peace} ended with {code} without any fault; nothing to compare with")
            return code
    say(f"chaos: now with --chaos {options.text()}")
    chaos = Chaos(options)
    try:
        code = _run(file, name, environ, chaos)
    finally:
        chaos.close()
    say(faults_text(options, chaos.struck))
    if code != 0:
        say(f"chaos: {name} ended with {code}; --chaos {options.text()} gives the same faults")
        return code
    found = compare(_lines(job_home(environ, name)), _lines(job_home(environ, peace)))
    say(comparison_text(found))
    return 0 if found.same else 1


def _check_peace(environ: Mapping[str, str], name: str, peace: str) -> None:
    if peace == name:
        raise BadInputError(
            f"--chaos peace={peace!r} is the job that is to be run: it would be compared with "
            "itself; name another run, or leave peace= out"
        )
    home = find_job(environ, peace)
    if is_running(home.record()):
        raise BadInputError(
            f"--chaos peace={peace!r} is still running; wait for its end, or leave peace= out"
        )
    if not _lines(home):
        raise BadInputError(
            f"--chaos peace={peace!r} wrote no steps to compare with: only runs with --chaos do, "
            f"of scripts that call job.step(); leave peace= out, and {name} is run in peace first"
        )


def _run(file: Path, name: str, environ: Mapping[str, str], chaos: Chaos | None) -> int:
    steps = job_home(environ, name).path.absolute() / _STEPS
    return run_job(
        file,
        RunOptions(
            name=name,
            director=chaos.play if chaos else None,
            surroundings=Surroundings(
                route=chaos.route if chaos else None,
                variables={ENV_STEP_LOG: str(steps)},
            ),
        ),
        environ,
    )


def _lines(home: JobHome) -> list[RankLine]:
    return read(home.path / _STEPS)


def faults_text(options: Options, struck: Struck) -> str:
    """Return the injected faults as text, most frequent first."""
    counts = sorted(struck.done.items(), key=lambda item: (-item[1], item[0].value))
    kinds = ", ".join(f"{kind.value} {count}" for kind, count in counts)
    missed = f"; {struck.missed} found nobody" if struck.missed else ""
    total = counted(struck.done.total(), "fault")
    return f"chaos: {total} (seed {options.seed}): {kinds or 'none'}{missed}"


def comparison_text(found: RunComparison) -> str:
    """Return the verdict with its figures."""
    verdict = "the same work" if found.same else "NOT the same work"
    figures = (
        f"; {counted(found.redone, 'step')} done again, largest difference of a loss "
        f"{found.worst:.2%} (up to {TOLERANCE:.0%} is the same), {counted(found.torn, 'step')} not "
        "compared (a rank died before it wrote)"
        if found.steps
        else ""
    )
    return f"chaos: {verdict}: {found.reason}{figures}"
