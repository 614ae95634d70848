"""Writes what the chart and the plain manifests share, or checks that it is up to date.

`charts/holdfast/templates/crd.yaml` is the CRD under its two switches; `manifests/install.yaml` is
the chart with its default values. `make manifests` writes both; `--check` exits with 1 where one
would change, and looks at the second only where helm is built.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast_operator.crd import load_crd

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts/holdfast"
TEMPLATE = CHART / "templates/crd.yaml"
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


def install(helm: Path) -> str:
    """Return the chart rendered with its default values."""
    command = [str(helm), "template", "holdfast", str(CHART), f"--namespace={NAMESPACE}"]
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
    wanted = {TEMPLATE: template()}
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
