"""Writes what the chart and the plain manifests share, or checks that it is up to date.

`charts/holdfast/templates/crd.yaml` is the CRD under its two switches; `charts/holdfast/README.md`
has a table of `values.yaml`; `manifests/install.yaml` is the chart with its default values. `make
manifests` writes all three; `--check` exits with 1 where one would change, and looks at the last
only where helm is built.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from holdfast_operator.crd import load_crd

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts/holdfast"
TEMPLATE = CHART / "templates/crd.yaml"
README = CHART / "README.md"
INSTALL = ROOT / "manifests/install.yaml"
NAMESPACE = "holdfast-system"
_TEMPLATE_HEAD = """\
{{- /* Written by `make manifests` from manifests/crd/elasticjobs.yaml: change that. */ -}}
{{- if .Values.crds.enabled }}
"""
_NAME = "  name: elasticjobs.holdfast.dev\n"
_KEEP = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""
_TABLE_BEGIN = "<!-- Written by `make manifests` from values.yaml: change that. -->\n"
_TABLE_END = "<!-- end of the values -->\n"
_INSTALL_HEAD = f"""\
# Everything that a cluster needs for ElasticJobs, without Helm: kubectl apply -f install.yaml
# Written by `make manifests` from charts/holdfast with its default values: change that.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""


def template() -> str:
    """Return the CRD as a template of the chart.

    Raises:
        ValueError: the CRD has braces, which Helm would read as its own.
    """
    crd = load_crd()
    if "{{" in crd or crd.count(_NAME) != 1:
        raise ValueError("manifests/crd/elasticjobs.yaml: two braces, or its name not found once")
    return _TEMPLATE_HEAD + crd.replace(_NAME, _NAME + _KEEP) + "{{- end }}\n"


def documented(text: str) -> list[tuple[str, str, str]]:
    """Return each value of a values file: its path, its default as JSON, the comment above it.

    A mapping in braces is one value.

    Raises:
        ValueError: A value has no comment.
    """
    lines = text.splitlines()
    node = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("values.yaml: no mapping")  # noqa: TRY004 - as for the other faults
    found = []
    for path, line, value in _leaves(node, ()):
        first = line
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        words = " ".join(one.strip("# ") for one in lines[first:line])
        if not words:
            raise ValueError(f"values.yaml: {path} has no comment above it")
        default = json.dumps(yaml.SafeLoader("").construct_object(value, deep=True))
        found.append((path, default, words))
    return found


def _leaves(node: yaml.MappingNode, above: Sequence[str]) -> Iterator[tuple[str, int, yaml.Node]]:
    for key, value in node.value:
        path = (*above, key.value)
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _leaves(value, path)
        else:
            yield ".".join(path), key.start_mark.line, value


def readme() -> str:
    """Return the chart's page with the table of its values."""
    rows = [
        f"| `{path}` | `{default}` | {words.replace('|', chr(92) + '|')} |\n"
        for path, default, words in documented((CHART / "values.yaml").read_text())
    ]
    # Without the marks the table comes at the end.
    head, _, rest = README.read_text().partition(_TABLE_BEGIN)
    _, _, tail = rest.partition(_TABLE_END)
    table = ["| value | default | meaning |\n", "|---|---|---|\n", *rows]
    return "".join([head, _TABLE_BEGIN, "\n", *table, "\n", _TABLE_END, tail])


def install(helm: Path) -> str:
    """Return the chart rendered with its default values, without its test."""
    command = [str(helm), "template", "holdfast", str(CHART), f"--namespace={NAMESPACE}"]
    command.append("--skip-tests")
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _INSTALL_HEAD + rendered


def find_helm() -> Path | None:
    """Return the helm of the test cluster; None where it is not built."""
    script = [str(ROOT / "scripts/cluster_tools.sh"), "--no-build"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) / "helm" if done.returncode == 0 else None


def main() -> int:
    """Write, or check; return the exit code."""
    helm = find_helm()
    wanted = {TEMPLATE: template(), README: readme()}
    if "--check" not in sys.argv:
        # First, because the second is made of it.
        TEMPLATE.write_text(wanted[TEMPLATE])
    if helm is None:
        print(f"chart: {INSTALL.relative_to(ROOT)} skipped; `make cluster-tools` builds helm")
    else:
        wanted[INSTALL] = install(helm)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"chart: {path.relative_to(ROOT)} is out of date; run `make manifests`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
