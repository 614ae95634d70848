#!/usr/bin/env bash
# Builds the load benchmark's generator from bench/load/generator and the .proto files, once for each
# content of them, into a cache outside the checkout, and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."

source=bench/load/generator
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
module=$(awk '$1 == "module" { print $2 }' $source/go.mod)
# What the agents' and the watchers' streams need.
protos=(holdfast_wire/v1/{fence,spec,checkpoint,evidence,agent,job}.proto)

digest=$(cat "$0" $source/* "${protos[@]/#/proto/}" | sha256sum | cut -c1-12)
program=$root/load-generator-$digest/generator
if [ -x "$program" ]; then
  printf '%s\n' "$program"
  exit
fi

mkdir -p "$root"
exec 9>"$root/.load-generator.lock"
flock 9
if [ ! -x "$program" ]; then
  echo "load generator: building it into $root (once for each content, about a minute)" >&2
  go=$(scripts/find_go.sh)
  fresh=$(mktemp -d "$root/building.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  mkdir "$fresh/source" "$fresh/whole"
  cp $source/* "$fresh/source"
  # The toolchain is the machine's: a newer one is never fetched.
  export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off
  "$go" -C "$fresh/source" build -o "$fresh/protoc-gen-go" \
    google.golang.org/protobuf/cmd/protoc-gen-go
  mapping=()
  for proto in "${protos[@]}"; do
    mapping+=("--go_opt=M$proto=$module/wire")
  done
  .venv/bin/python -W ignore -m grpc_tools.protoc -Iproto \
    "--plugin=protoc-gen-go=$fresh/protoc-gen-go" "--go_out=$fresh/source" \
    "--go_opt=module=$module" "${mapping[@]}" "${protos[@]}"
  "$go" -C "$fresh/source" vet ./...
  "$go" -C "$fresh/source" build -trimpath -ldflags='-s -w' -o "$fresh/whole/generator" .
  # In one piece: a build that was interrupted leaves nothing that looks whole.
  rm -rf "${program%/*}"
  mv "$fresh/whole" "${program%/*}"
fi
printf '%s\n' "$program"
