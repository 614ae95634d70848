#!/usr/bin/env bash
# Prints the path of a Python with Megatron's own training: megatron-core 0.19's wheel has it, and wants
# Python 3.12. That is .venv's, or that of an environment which is made once from the package index,
# in a cache outside the checkout. Says why and exits with 3 where there is no such Python, or no package.
# It has what a rank and its agent import, and not Holdfast itself: put the checkout on PYTHONPATH.
# MEGATRON_PYTHON names the Python to take.
set -euo pipefail
cd "$(dirname "$0")/.."

suitable() {
  "$1" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))' >/dev/null 2>&1
}

if suitable .venv/bin/python && .venv/bin/python -c 'import megatron.training' >/dev/null 2>&1; then
  printf '%s/.venv/bin/python\n' "$PWD"
  exit
fi
python=
# A version manager's own Pythons are off the path until its settings choose them.
for one in ${MEGATRON_PYTHON:-python3.12 python3.13 "${PYENV_ROOT:-${HOME:-/tmp}/.pyenv}"/versions/3.1[23].*/bin/python}; do
  if suitable "$one"; then
    python=$(command -v "$one")
    break
  fi
done
if [ -z "$python" ]; then
  echo "megatron: there is no Python 3.12 or 3.13 here (MEGATRON_PYTHON can name one)" >&2
  exit 3
fi
uv=$(command -v .venv/bin/uv || command -v uv || command -v build/uv/bin/uv || true)
if [ -z "$uv" ]; then
  echo "megatron: there is no uv to install with; run 'make setup' first" >&2
  exit 3
fi
wants=$("$python" - <<'PY'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
megatron = [one.partition(";")[0] for one in extras["frameworks"] if "version >= '3.12'" in one]
print(*project["dependencies"], *extras["agent"], *extras["train"], *megatron, sep="\n")
PY
)
digest=$(printf '%s\n' "$wants" "$("$python" -VV)" | sha256sum | cut -c 1-12)
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast/megatron-$digest
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if [ ! -e "$cache/.whole" ]; then
  echo "megatron: installing megatron-core with $("$python" --version) into $cache (once, a few minutes)" >&2
  export UV_PYTHON_DOWNLOADS=never
  "$uv" venv --quiet --clear --python "$python" "$cache/venv" >&2 &&
    printf '%s\n' "$wants" >"$cache/requirements.txt" &&
    # Byte code: where PYTHONDONTWRITEBYTECODE is set, each start would compile torch anew.
    "$uv" pip install --quiet --compile-bytecode --python "$cache/venv/bin/python" \
      --requirements "$cache/requirements.txt" >&2 || exit 3
  touch "$cache/.whole"
fi
printf '%s\n' "$cache/venv/bin/python"
