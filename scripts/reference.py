"""Writes `docs/reference/elasticjob.md` from the CRD, or checks that it is up to date.

`make manifests` writes; `--check` exits with 1 where the page would change. Every field, unit,
default and rule on the page is the CRD's; what is missing in this version is the operator's table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from generated_page import keep
from holdfast_operator.crd import load_crd
from holdfast_operator.spec.availability import NOT_BUILT
from holdfast_operator.spec.schema import Crd, FieldKind, Schema, parse_crd, walk

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/elasticjob.md"
HEAD = """# ElasticJob: every field

<!-- Written by scripts/reference.py from manifests/crd/elasticjobs.yaml: change those, then run
`make manifests`. -->

`apiVersion: {api_version}`, `kind: {kind}`.

The same file runs in a cluster (`kubectl apply`) and on one machine (`holdfast run`). Both check
it by the CRD's schema and rules; without a cluster every fault is told at once, each with its
line, field, value and remedy, before anything starts.

- **Unknown fields** are refused with the nearest known name. In `template` only the local runner
  looks inside; a cluster's API server checks the pods instead.
- **Keys that stand twice** in a mapping are refused, as are keys that YAML does not read as text.
- **Empty fields** (`minReplicas:`) count as absent.
- **YAML reads** an unquoted `yes`, `no`, `on`, `off` as a boolean and `3e-4` as a number: quote
  them where a text is meant, in `command` and `env` too.
- **Required** fields are in bold; `[]` stands for each item of a list.
- **No default** means that nothing is set.

## Not in this version

These fields are part of the format, so files need no change later, but what they ask for is not
there yet. Writing one of them with a value that asks for it is refused by name; where it is
absent, its feature is off: no default asks for it. In a cluster the operator refuses it: before
anything is made for it the job ends with the condition Failed, reason NotSupported, and an edit
of a job that has pods already is answered by a warning (`kubectl events`) and does nothing.

| field | missing | may be written |
|---|---|---|
{missing}

"""
UNITS = (("Seconds", "s"), ("Percent", "%"), ("Steps", "steps"), ("interval", "steps"))
TYPES = {
    FieldKind.OBJECT: "group",
    FieldKind.ARRAY: "list",
    FieldKind.STRING: "text",
    FieldKind.INTEGER: "number",
    FieldKind.BOOLEAN: "boolean",
    FieldKind.INT_OR_STRING: "number or text",
}
LOCAL = """## Pod templates without a cluster

`holdfast run` starts the container named `worker` (else the first) of each pod as a process.
Used: `command`, `args`, `env`, `workingDir`, `terminationGracePeriodSeconds`. `$(NAME)` is
expanded in commands, arguments and values as in Kubernetes, `$$` is a plain `$`. `valueFrom` may
be `fieldRef` of `metadata.name`, `metadata.namespace` or `metadata.uid`; other sources and
`envFrom` are refused. All other fields (image, volumes, resources, …) and other containers are
left out, each with a notice. `command` is required: without an image, nobody else knows what to
start. `terminationGracePeriodSeconds` is also the time from Ctrl-C, or a SIGTERM to `holdfast run`,
in which the ranks save and stop; without the field it is 15 s.
"""


def page() -> str:
    """Return the whole page."""
    crd = parse_crd(load_crd())
    spec, status = crd.schema.properties["spec"], crd.schema.properties["status"]
    missing = "\n".join(_missing(crd))
    parts = [
        HEAD.format(api_version=crd.api_version, kind=crd.kind, missing=missing),
        *_sections(spec),
        LOCAL,
        _rules(crd),
        _table("status", "What is. Written by the operator only.", list(walk(status))[1:]),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _missing(crd: Crd) -> Iterator[str]:
    spec = crd.schema.properties["spec"]
    for row in NOT_BUILT:
        node = spec
        for step in row.steps[1:]:
            node = node.properties[str(step)]
        allowed = ", ".join(map(_code, row.allowed)) or (
            f"text without {_code(row.without)}"
            if row.without
            else "the defaults"
            if node.has_default
            else "nothing"
        )
        yield f"| {_code(row.path)} | {row.feature} | {allowed} |"


def _sections(spec: Schema) -> Iterator[str]:
    single = {name: node for name, node in spec.properties.items() if not _is_group(node)}
    top = [((name,), node) for name, node in single.items()]
    yield _table("spec", "Size, and the job as a whole.", top, spec.required)
    for name, node in spec.properties.items():
        if _is_group(node):
            rows = [row for row in walk(node, (name,)) if not _is_repeated(row[0])][1:]
            text = node.description + (" Required." if name in spec.required else "")
            yield _table(f"spec.{name}", text, rows, node.required)


def _is_group(node: Schema) -> bool:
    return node.kind in {FieldKind.OBJECT, FieldKind.ARRAY}


def _is_repeated(path: tuple[str | int, ...]) -> bool:
    """Return True when a field is in a template other than the worker's, the only one shown."""
    return "template" in path[:-1] and path[0] != "worker"


def _table(
    title: str,
    text: str,
    rows: Sequence[tuple[tuple[str | int, ...], Schema]],
    required: tuple[str, ...] = (),
) -> str:
    lines = [f"## `{title}`", "", text, ""]
    lines += ["| field | type | default | allowed | what |", "|---|---|---|---|---|"]
    parents = {tuple(path): node for path, node in rows}
    for path, node in rows:
        above = parents.get(tuple(path[:-1]))
        names = required if above is None else above.required
        last = str(path[-1])
        shown = ".".join(map(str, path))
        field = f"**`{shown}`**" if last in names else f"`{shown}`"
        cells = [field, _type(last, node), _default(node), _allowed(node), _what(node)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _type(name: str, node: Schema) -> str:
    unit = next((unit for word, unit in UNITS if word in name), None)
    if node.kind is FieldKind.ARRAY and node.items is not None:
        return f"list of {TYPES[node.items.kind]}s"
    if node.form == "date-time":
        return "time (RFC 3339)"
    if node.values is not None:
        return f"mapping to {TYPES[node.values.kind]}s"
    return TYPES[node.kind] + (f", {unit}" if unit else "")


def _default(node: Schema) -> str:
    return _code(node.default) if node.has_default and node.default != {} else ""


def _allowed(node: Schema) -> str:
    if node.choices:
        return ", ".join(map(_code, node.choices))
    what = {
        FieldKind.STRING: " characters",
        FieldKind.ARRAY: " items",
        FieldKind.OBJECT: " keys",
    }.get(node.kind, "")
    span = ""
    if node.least is not None and node.most is not None:
        span = f"{node.least} to {node.most}{what}"
    elif node.most is not None:
        span = f"at most {node.most}{what}"
    elif node.least is not None:
        span = f"at least {node.least}{what}"
    unique = {"set": "no repeats", "map": "no repeated " + " and ".join(node.unique_by)}
    pattern = f"matches {_code(node.pattern)}" if node.pattern else ""
    return ", ".join(part for part in (span, unique.get(node.unique, ""), pattern) if part)


def _what(node: Schema) -> str:
    kept = " Other fields are kept as they are." if node.preserve and node.properties else ""
    # The page has a column for it; `kubectl explain` shows no defaults of its own.
    words = node.description.removesuffix(f" Default: {_plain(node.default)}.")
    return _cell(words + kept)


def _code(value: object) -> str:
    return f"`{_cell(_plain(value))}`"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _rules(crd: Crd) -> str:
    lines = ["## Rules", "", "Relations between fields, checked after types and bounds.", ""]
    lines += ["| field | rule | when |", "|---|---|---|"]
    for path, node in walk(crd.schema):
        for rule in node.rules:
            names = ".".join(map(str, (*path, *rule.field)))
            where = f"`{names}`" if names else "the whole object"
            when = "update" if rule.about_change else "always"
            lines.append(f"| {where} | {_cell(rule.message)} | {when} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    keep(PAGE, page())
