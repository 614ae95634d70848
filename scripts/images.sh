#!/usr/bin/env bash
# Builds the images of images/ with buildah: localhost/holdfast (operator, job masters) and
# localhost/holdfast-worker. Ends with their sizes, and with a bill of materials of each in build/images.
# Equal inputs make equal layers. Needs root; installs buildah and debootstrap where there is apt.
# Settings, from the environment:
#   BASE          of both, with Python and pip; empty: Debian's packages, no registry is asked
#   RUNTIME_BASE  below the operator instead, with the same Python (BASE)
#   WORKER_BASE   below workers instead (BASE)
#   TORCH         none: not even where the worker's base lacks it (pypi)
#   TAG           of both images (the version)
# Usage: scripts/images.sh [--storage FOLDER] [--no-cache] [--no-report]
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "images: $*" >&2
  exit 3
}

storage= cache=--layers report=yes
arguments=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --storage) storage=$(realpath -m "$2"); shift ;;
    --no-cache) cache=--no-cache ;;
    --no-report) report= ;;
    *) fail "'$1' is not known" ;;
  esac
  shift
done

[ "$(id -u)" = 0 ] || fail "building needs root"
# Mounts of debootstrap and buildah stay in a namespace of their own, and end with it.
[ -n "${HOLDFAST_IMAGES_INSIDE:-}" ] ||
  exec env HOLDFAST_IMAGES_INSIDE=1 unshare -m --propagation private scripts/images.sh "${arguments[@]}"
scripts/debian_packages.sh buildah:buildah || fail "buildah is needed"

root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
mkdir -p "$root"
fresh=$(mktemp -d "$root/imaging.XXXXXX")
end() {
  # By name: the storage may have containers of others.
  [ ! -e "$fresh/containers" ] || xargs -n 1 <"$fresh/containers" | while read -r one; do engine rm "$one" >/dev/null; done
  rm -rf "$fresh"
}
trap end EXIT
# Of two builds in one storage buildah takes the one's unfinished layers for leftovers of the other.
exec 8>"$root/.images${storage//\//-}.lock"
flock 8
# Without a layer's times no tool shows its age; with them no two builds would be equal. 1 January 1980 is
# the first day that a wheel can have.
epoch=315532800

engine() {
  local verb=$1
  shift
  if [ -n "$storage" ]; then
    buildah --root "$storage" --runroot "$fresh/run" "$verb" "$@"
  else
    buildah "$verb" "$@"
  fi
}

build() { # CONTAINERFILE IMAGE OPTIONS...
  local file=$1 image=$2 certificates=
  shift 2
  [ ! -d /etc/ssl/certs ] || certificates="-v /etc/ssl/certs:/etc/ssl/certs:ro"
  # shellcheck disable=SC2086 # words
  (cd "$fresh/context" && engine bud --quiet --timestamp $epoch --isolation chroot --network host $certificates \
    -f "images/Containerfile.$file" -t "$image" "$@" . >&2)
}

# Debian with Python, from where this machine's own packages come. .venv's Python, because real nodes
# show its torch to workers.
root_file_system() {
  local to=$root/rootfs-$suite.tar mirror=
  if [ ! -e "$to" ]; then
    scripts/debian_packages.sh debootstrap:debootstrap || fail "without BASE, debootstrap is needed"
    mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
      awk '$1 == "URIs:" { print $2; exit } $1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }')
    echo "images: debootstrap of $suite (once, two minutes)" >&2
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip "$suite" "$fresh/rootfs" \
      ${mirror:+"$mirror"} >"$fresh/debootstrap.log" 2>&1 || { tail -5 "$fresh/debootstrap.log" >&2; return 1; }
    umount "$fresh/rootfs/proc" 2>/dev/null || true
    tar -C "$fresh/rootfs" --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' \
      --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' -cf "$to.$$" .
    mv "$to.$$" "$to"
  fi
  ln "$to" "$fresh/context/rootfs.tar" 2>/dev/null || cp "$to" "$fresh/context/rootfs.tar"
}

debian_bases() {
  local python suite
  local -A suites=([3.11]=bookworm [3.13]=trixie)
  python=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  suite=${suites[$python]:-}
  [ -n "$suite" ] || fail "Debian has Python 3.11 and 3.13, .venv has $python: set BASE, or make .venv with one of them"
  root_file_system
  BASE=localhost/holdfast-debian:$suite
  RUNTIME_BASE=localhost/holdfast-debian-python:$suite
  build debian "$BASE" --layers --target full
  build debian "$RUNTIME_BASE" --layers --target python
  rm "$fresh/context/rootfs.tar"
}

build_images() {
  local one base
  local revision=${REVISION-$(git describe --always --abbrev=40 --exclude='*' --dirty)} created=${CREATED-$(git log -1 --format=%cI)}
  for one in operator worker; do
    base=$BASE
    [ $one = operator ] || base=${WORKER_BASE:-$BASE}
    local arguments=(--build-arg "BASE=$base" $cache)
    # An argument that a file does not have is an error.
    [ $one = worker ] || arguments+=(--build-arg "RUNTIME_BASE=$RUNTIME_BASE")
    [ $one = operator ] || arguments+=(--build-arg "TORCH=${TORCH:-pypi}")
    # A name of their own keeps the dependencies where images without one are removed.
    build $one "localhost/holdfast-$one-dependencies:local" --target dependencies "${arguments[@]}"
    [ $one = worker ] || base=$RUNTIME_BASE
    # Written into the file: buildah's cache does not look at arguments of a LABEL.
    sed -i -e "s|\${VERSION}|$version|" -e "s|\${REVISION}|$revision|" -e "s|\${CREATED}|$created|" \
      -e "s|\${BASE_NAME}|$base|" "$fresh/context/images/Containerfile.$one"
    # Without a cache the dependencies would be installed twice.
    build $one "${image[$one]}" "${arguments[@]}" --layers
    below[$one]=$base
  done
}

# The path of an image's files, for as long as this script runs.
mounted() {
  local container
  container=$(engine from --pull-never "$1")
  echo "$container" >>"$fresh/containers"
  engine mount "$container"
}

megabytes() { # as they lie on a disk
  du -s --block-size=1 "$1" | awk '{ printf "%.0f", $1 / 1e6 }'
}

# What pip installed, by CycloneDX's own tool. It asks an interpreter for its path, and gets the image's.
bill_of_materials() { # FOLDER FILE
  local python=$fresh/python
  # shellcheck disable=SC2016 # the image's PATH
  chroot "$1" "$(cd "$1" && ls opt/holdfast/bin/python3 usr/local/bin/python3 usr/bin/python3 opt/conda/bin/python3 2>/dev/null |
    head -1 | sed 's#^#/#')" -I -c "import json, sys; print(json.dumps(['$1' + one for one in sys.path if one]))" >"$fresh/path"
  printf '#!/bin/sh\ncat %s/path\n' "$fresh" >"$python"
  chmod +x "$python"
  SOURCE_DATE_EPOCH= .venv/bin/uv tool run --quiet --isolated --from cyclonedx-bom==7.5.0 \
    cyclonedx-py environment --output-reproducible -o "$2" "$python"
}

print_report() {
  local one files base
  mkdir -p build/images
  printf '\n%-40s %8s %12s   %s\n' image 'base MB' 'beyond it MB' 'bill of materials'
  for one in operator worker; do
    files=$(mounted "${image[$one]}")
    base=$(megabytes "$(mounted "${below[$one]}")")
    bill_of_materials "$files" "build/images/$one.cdx.json"
    printf '%-40s %8d %12d   %s\n' "${image[$one]}" "$base" $(($(megabytes "$files") - base)) "build/images/$one.cdx.json"
  done
}

mkdir "$fresh/context" "$fresh/context/dist"
cp -r images "$fresh/context/"
.venv/bin/uv build --quiet --wheel --out-dir "$fresh/context/dist" >&2
version=$(ls "$fresh/context/dist" | cut -d- -f2)
declare -A image=([operator]="localhost/holdfast:${TAG:-$version}" [worker]="localhost/holdfast-worker:${TAG:-$version}") below=()
if [ -z "${BASE:-}" ]; then
  debian_bases
fi
: "${RUNTIME_BASE:=$BASE}"
build_images
[ -z "$report" ] || print_report
