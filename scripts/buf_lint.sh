#!/usr/bin/env bash
# Lints the .proto files with buf; says so where there is no Go to build it with.
set -euo pipefail
cd "$(dirname "$0")/.."

code=0
buf=$(scripts/go_tool.sh buf) || code=$?
if [ "$code" = 3 ]; then
  echo "buf lint: skipped"
  exit 0
fi
[ "$code" = 0 ] || exit "$code"
"$buf" lint proto
echo "buf lint: clean"
