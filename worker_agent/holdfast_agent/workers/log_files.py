"""Log files of the workers: torch's layout, tails to the console, error files.

torch's `LogsSpecs` and `TailLog` do the work, so directories and prefixes are torchrun's by
construction. Blocking (directories are made): call `LogKeeper.open_round` in a thread.
"""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Any

from holdfast_agent import temporary_directories
from holdfast_agent.config.launch import LogFlags
from holdfast_agent.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """Files of one local rank; None: inherited, or not there."""

    stdout: Path | None
    stderr: Path | None
    error: Path | None
    server: Path
    """Unix socket of torch's worker server in the rank."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundLogs:
    """Files of one round and what shows them."""

    files: Mapping[int, RankFiles]
    stop: Callable[[], None]
    """Shows the rest of the output and ends. Blocks up to torch's poll interval of 0.1 s."""


class LogKeeper:
    """Makes the files of each round, in one directory per run."""

    def __init__(self, flags: LogFlags, role: str) -> None:
        """Prepare the run's directory; raises InputError if it cannot be made."""
        self._flags = flags
        self._role = role
        self.scratch = temporary_directories.make()
        """Sockets and captured output, removed at the end, or at a later agent's start."""
        self._own_logs = None if flags.log_dir else self.scratch / temporary_directories.LOGS
        try:
            self._specs = self._make_specs()
        except InputError:
            temporary_directories.remove(self.scratch)
            raise

    def open_round(
        self, envs: dict[int, dict[str, str]], round_number: int, *, capture_stderr: bool
    ) -> RoundLogs:
        """Make the files of a round, and show those with --tee.

        Adds TORCHELASTIC_ERROR_FILE to each of `envs`.

        capture_stderr: keep standard error in a file even if no flag asks for that, because failure
            rules search it; the console still gets it.
        """
        dest = self._specs.reify(envs)
        folder = self.scratch / f"round_{round_number}"
        folder.mkdir(exist_ok=True)
        captured = {}
        if capture_stderr:
            captured = {r: str(folder / f"stderr_{r}.log") for r in envs if not dest.stderrs[r]}
        files = {
            rank: RankFiles(
                stdout=_path(dest.stdouts[rank]),
                stderr=_path(captured.get(rank) or dest.stderrs[rank]),
                error=_path(env.get("TORCHELASTIC_ERROR_FILE", "")),
                server=folder / f"{rank}.sock",
            )
            for rank, env in envs.items()
        }
        ends = ExitStack()
        for tail in self._tails(dest, envs, captured, ends):
            # A tail waits for its file, which the worker's start makes.
            tail.start()
            ends.callback(tail.stop)
        return RoundLogs(files, ends.close)

    def close(self, *, keep: bool) -> Path | None:
        """Remove temporary files; return the directory of logs that was kept after a failure.

        Without output in a file there is nothing to keep.
        """
        if keep and self._own_logs is not None and temporary_directories.keep_logs(self.scratch):
            return self._own_logs
        temporary_directories.remove(self.scratch)
        return None

    def _make_specs(self) -> Any:
        from torch.distributed.elastic.multiprocessing import Std
        from torch.distributed.run import _get_logs_specs_class

        flags = self._flags
        try:
            return _get_logs_specs_class(flags.specs)(
                log_dir=flags.log_dir or str(self._own_logs),
                redirects=Std.from_str(flags.redirects),
                tee=Std.from_str(flags.tee),
                local_ranks_filter=set(flags.ranks_filter) if flags.ranks_filter else None,
            )
        except ValueError as error:
            raise InputError("--logs-specs", flags.specs, f"a registered name ({error})") from error
        except OSError as error:
            remedy = f"a directory that can be written ({error.strerror})"
            raise InputError("--log-dir", flags.log_dir, remedy) from error

    def _tails(
        self,
        dest: Any,
        envs: Mapping[int, Mapping[str, str]],
        captured: Mapping[int, str],
        ends: ExitStack,
    ) -> list[Any]:
        """Return torch's TailLog objects; `ends` closes the files that they write to."""
        from torch.distributed.elastic.multiprocessing.tail_log import TailLog

        name, prefixes = self._role, self._prefixes(envs)
        tails = [
            TailLog(name, dest.tee_stdouts, sys.stdout, prefixes),
            TailLog(name, dest.tee_stderrs, sys.stderr, prefixes),
            TailLog(name, dict(captured), sys.stderr, dict.fromkeys(captured, "")),
        ]
        for files, target, words in (
            (dest.tee_stdouts, dest.filtered_stdout, self._flags.stdout_filters),
            (dest.tee_stderrs, dest.filtered_stderr, self._flags.stderr_filters),
        ):
            if words:
                file = Path(target).open("w", errors="replace", buffering=1)  # noqa: SIM115 - closed by `ends`
                ends.callback(file.close)
                keep = _contains_any(words)
                tails.append(TailLog(name, files, file, prefixes, log_line_filter=keep))
        return tails

    def _prefixes(self, envs: Mapping[int, Mapping[str, str]]) -> dict[int, str] | None:
        if self._flags.prefix_template is None:
            return None
        template, host = Template(self._flags.prefix_template), socket.gethostname()
        return {
            local_rank: template.safe_substitute(
                role_name=self._role, rank=env["RANK"], local_rank=local_rank, hostname=host
            )
            for local_rank, env in envs.items()
        }


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _contains_any(words: tuple[str, ...]) -> Any:
    return lambda line: any(word in line for word in words)
