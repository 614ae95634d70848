"""Errors of the command line, and the exit code of each."""

from __future__ import annotations


class CliError(Exception):
    """An error for a person: a sentence with the fault and the remedy."""

    exit_code = 1


class JobFailedError(CliError):
    """The job ended without success."""


class BadInputError(CliError):
    """A file, a flag or an environment variable is wrong; nothing was started."""

    exit_code = 2


class JobNotFoundError(CliError):
    """No job of that name is known."""

    exit_code = 3


class MasterUnreachableError(CliError):
    """The job's master does not answer."""

    exit_code = 4


class MasterRefusedError(CliError):
    """The master refused; or the job has ended, so it cannot be steered."""

    exit_code = 5


class BackgroundEndedError(CliError):
    """The background part of `run --detach` ended at once, with its exit code."""

    def __init__(self, text: str, code: int) -> None:
        """Pass on its output and its exit code; negative: it ended by that signal."""
        super().__init__(text)
        self.exit_code = code if code > 0 else 128 - code


EXIT_CODES = {
    0: "done; for run and watch: the job succeeded",
    1: "run and watch: the job failed, or was stopped; check: a fault was found",
    2: "bad input: a file, flag or variable is wrong; nothing was started",
    3: "no job of that name",
    4: "the job's master does not answer, and the job left no word of its end",
    5: "the master refused, or the job has ended",
    6: "journal verify: damaged, and nothing is lost",
    7: "journal verify: facts are lost; checkpoint inspect and verify: a step is damaged",
    8: "replay: this release decides differently",
    9: "checkpoint diff: the steps differ",
    10: "samples: some were lost, or used more than once",
    129: "run: ended by SIGHUP (the terminal is gone; not under nohup)",
    130: "interrupted",
    141: "nobody reads standard output any more (run goes on without a reader)",
    143: "run: ended by SIGTERM",
}
"""Every exit code of `holdfast`, for the documentation and the help text."""
