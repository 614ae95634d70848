"""`holdfast convert`: read a foreign job's file, write an ElasticJob's."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import yaml

from holdfast_cli.convert import dlrover, pytorchjob, trainjob
from holdfast_cli.convert.conversion import Conversion
from holdfast_cli.convert.rules import Finding, Outcome
from holdfast_cli.convert.source import Source
from holdfast_cli.errors import BadInputError
from holdfast_operator.crd import load_crd
from holdfast_operator.spec import InvalidJobError, read_job
from holdfast_operator.spec.problems import show_value
from holdfast_operator.spec.yaml_documents import read_documents

_KINDS: Final[Mapping[tuple[str, str], Callable[[Source], Conversion]]] = {
    ("kubeflow.org/v1", "PyTorchJob"): pytorchjob.convert,
    ("elastic.iml.github.io/v1alpha1", "ElasticJob"): dlrover.convert,
}
_TRAIN_JOB: Final = ("trainer.kubeflow.org/v1alpha1", "TrainJob")
_VERSIONS: Final = {kind: version for version, kind in (*_KINDS, _TRAIN_JOB)}
_KNOWN: Final = "PyTorchJob (kubeflow.org/v1), TrainJob with its runtime, DLRover's ElasticJob"
_NOT_OURS: Final[Mapping[str, str]] = {
    "MPIJob": "its ranks are started over ssh by mpirun; write a PyTorchJob or an ElasticJob",
    "TFJob": "it trains TensorFlow; an ElasticJob trains PyTorch",
    "XGBoostJob": "it trains XGBoost; an ElasticJob trains PyTorch",
    "JAXJob": "it trains JAX; an ElasticJob trains PyTorch",
    "PaddleJob": "it trains Paddle; an ElasticJob trains PyTorch",
    "RayJob": "Ray starts its ranks; an ElasticJob's are started by agents",
}
_WIDTH: Final = 100
_LEFT_OUT: Final = {
    Outcome.DROPPED: "Not needed here, and left out",
    Outcome.REFUSED: "REFUSED, and left out because of --force",
}


def convert_files(files: Sequence[Path], output: Path | None, *, force: bool) -> None:
    """Write the one foreign job in the files as an ElasticJob, to `output` or standard output.

    Raises:
        BadInputError: A file, a field or the result is wrong; nothing was written.
    """
    documents = [body for file in files for body in _documents(file)]
    if not documents:
        names = ", ".join(map(str, files))
        raise BadInputError(f"{names}: holds no object; give a file with one of: {_KNOWN}")
    made = convert_documents(documents)
    if made.refused and not force:
        lines = [f"{files[0]}: {finding}" for finding in made.refused]
        lines.append("nothing was written; --force leaves these out with a comment")
        raise BadInputError("\n".join(lines))
    text = write(made, files[0].name)
    try:
        read_job(text, load_crd())
    except InvalidJobError as error:
        # Fields are the new file's, and so are lines, of which nobody can look one up.
        bare = (dataclasses.replace(one, line=None) for one in error.problems)
        lines = [f"{files[0]}: the ElasticJob of this job is not valid: {one}" for one in bare]
        raise BadInputError("\n".join(lines)) from error
    if output is None:
        click.echo(text, nl=False)
        return
    _save(output, text)
    if output.is_file():
        click.echo(f"{output}: written; try it with `kubectl apply --dry-run=server -f {output}`")


def convert_documents(documents: Sequence[Mapping[str, Any]]) -> Conversion:
    """Return the conversion of the one foreign job among the documents.

    Raises:
        BadInputError: There is none, or several, or one of a kind that cannot be converted.
    """
    for body in documents:
        _check_kind(body)
    jobs = [body for body in documents if _VERSIONS.get(_kind(body)[1]) == _kind(body)[0]]
    if len(jobs) != 1:
        names = ", ".join(map(_name, jobs or documents))
        remedy = "give one at a time" if jobs else f"give one of: {_KNOWN}"
        raise BadInputError(f"{len(jobs)} jobs to convert in {names}; {remedy}")
    made = _convert(Source(jobs[0]), documents)
    for body in documents:
        if body is not jobs[0] and _kind(body)[1] not in trainjob.RUNTIMES:
            made.findings.append(Finding(_name(body), Outcome.DROPPED, "apply it as it is"))
    return made


def _check_kind(body: Mapping[str, Any]) -> None:
    version, kind = _kind(body)
    if kind in _NOT_OURS:
        raise BadInputError(f"kind: {kind} cannot be converted: {_NOT_OURS[kind]}")
    if version.startswith("holdfast.dev/"):
        raise BadInputError(f"{_name(body)} is Holdfast's own already; apply it as it is")
    if kind in _VERSIONS and version != _VERSIONS[kind]:
        raise BadInputError(
            f"apiVersion: {show_value(body.get('apiVersion'))} of {_name(body)} is not known here; "
            f"write the job as {_VERSIONS[kind]}"
        )


def _convert(job: Source, documents: Sequence[Mapping[str, Any]]) -> Conversion:
    kind = _kind(job.mapping())
    if kind != _TRAIN_JOB:
        return _KINDS[kind](job)
    runtime = trainjob.find_runtime(job, documents)
    if runtime is None:
        name, wanted = job.at("spec", "runtimeRef", "name").text(), trainjob.runtime_kind(job)
        raise BadInputError(
            f"spec.runtimeRef.name: {wanted} {name!r} is not among the files; write it to one with "
            f"`kubectl get {wanted.lower()} {name} -o yaml` and give that file too"
        )
    return trainjob.convert(job, runtime)


def write(made: Conversion, source: str) -> str:
    """Return the YAML of the conversion: comments about what it leaves out, then the objects."""
    lines = [f"# Converted from {made.source.at('kind').text()} in {source} by `holdfast convert`."]
    for outcome, title in _LEFT_OUT.items():
        found = [one for one in made.findings if one.outcome is outcome]
        if found:
            lines += [f"# {title}:", *(f"#   {one}".replace("\n", " ") for one in found)]
    documents = [made.job(), *made.others]
    return "\n".join(lines) + "\n" + "---\n".join(map(_yaml, documents))


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and lists of numbers in one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write what occurs twice twice."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flow = bool(items) and all(isinstance(item, int) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


def _yaml(body: Mapping[str, Any]) -> str:
    return yaml.dump(dict(body), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _kind(body: Mapping[str, Any]) -> tuple[str, str]:
    return str(body.get("apiVersion")), str(body.get("kind"))


def _name(body: Mapping[str, Any]) -> str:
    """Return kind and name of an object, for people."""
    name = Source(body).at("metadata").mapping().get("name")
    return f"{body.get('kind')} {name or 'without a name'}"


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"job file {str(file)!r} cannot be read: {why}") from error
    try:
        return list(read_objects(text, str(file)))
    except InvalidJobError as error:
        raise BadInputError(str(error)) from error


def read_objects(text: str, source: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a YAML text; of a list as `kubectl get -o yaml` writes it, its items.

    Raises:
        InvalidJobError: The text is not YAML; `source` names it.
        BadInputError: The list holds something else than objects.
    """
    for one in read_documents(text, source):
        if one.body.get("kind") == "List":
            yield from (item.mapping() for item in Source(one.body).at("items").items())
        else:
            yield one.body


def _save(output: Path, text: str) -> None:
    """Write the file whole or not at all; a pipe or a device gets the text itself."""
    try:
        if output.exists() and not output.is_file():
            output.write_text(text)
            return
        file = output.resolve()
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            temporary.write_text(text)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BadInputError(f"--output {output}: cannot be written: {error.strerror}") from error
