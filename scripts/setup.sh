#!/usr/bin/env bash
# Makes .venv with every extra. Needs a Python from 3.11 on with pip or venv, and a package index.
# `make setup` calls this, with its settings for uv, when pyproject.toml or this file is newer than
# the stamp that it leaves.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

suitable() { # a version manager's shim may exist and still not run, so it is asked
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  local name
  for name in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
    if suitable "$name"; then
      command -v "$name"
      return
    fi
  done
  fail "no Python 3.11 or newer among: ${PYTHON:-python3.13 python3.12 python3.11 python3 python}." \
    "Install one, or name one: make setup PYTHON=/path/to/python3"
}

# uv from the path, or from .venv, or installed by pip into build/uv.
find_uv() {
  local uv
  for uv in "$(command -v uv || true)" .venv/bin/uv build/uv/bin/uv build/uv-venv/bin/uv; do
    if [ -n "$uv" ] && "$uv" --version >/dev/null 2>&1; then
      printf '%s\n' "$uv"
      return
    fi
  done
  # --target works where the distribution forbids pip to touch its own packages; a Python without
  # pip may still have venv, which brings pip along.
  if "$1" -m pip --version >/dev/null 2>&1; then
    "$1" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
      --target build/uv uv >&2
    printf 'build/uv/bin/uv\n'
  elif "$1" -m venv build/uv-venv >&2; then
    build/uv-venv/bin/python -m pip install --quiet --disable-pip-version-check uv >&2
    printf 'build/uv-venv/bin/uv\n'
  else
    fail "uv is missing and $1 has neither pip nor venv." \
      "Install uv, or the packages python3-pip or python3-venv."
  fi
}

python=$(find_python)
uv=$(find_uv "$python")
if ! suitable .venv/bin/python; then
  "$uv" venv --quiet --clear --python "$python" .venv
fi
printf 'setup: installs into .venv; the first time this downloads torch and takes minutes\n'
# Quiet: only errors. Byte code is written here, once: where PYTHONDONTWRITEBYTECODE is set nobody else ever writes it,
# and then each start of a process compiles torch anew (5 s instead of 2).
"$uv" pip install --quiet --python .venv/bin/python --compile-bytecode \
  --editable '.[operator,master,agent,train,cli,traces,frameworks,plots,dev]'
touch .venv/.setup-stamp
printf 'setup: .venv is ready (%s)\n' "$(.venv/bin/python --version)"
