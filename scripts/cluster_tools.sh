#!/usr/bin/env bash
# Builds what a test cluster is made of (etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler, kubectl, helm; with --nodes what real nodes need, too: kubelet, kube-proxy, coredns)
# from the Go modules pinned in tests/testbed/modules/*/go.mod, once, into a cache outside the checkout,
# and prints the folder they are in. Warm it only prints.
# Where there is no Go, scripts/find_go.sh supplies one.
# Usage: scripts/cluster_tools.sh [--nodes] [--no-build]; GO_JOBS bounds the compiles that run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."

tools="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm"
if [ "${1:-}" = --nodes ]; then
  shift
  tools="$tools kubelet kube-proxy coredns"
fi
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
# By content: a change of any pinned version is another folder, and the old one still serves the
# branch that wants it.
digest=$(cat tests/testbed/modules/*/go.{mod,sum} tests/testbed/modules/coredns/main.go | sha256sum | cut -c1-12)
cache=$root/cluster-$digest

# build MODULE PACKAGE...: builds into a folder beside the cache first, so that a build that was
# interrupted leaves no half a binary behind.
build() {
  local module=$1 fresh missing=0 package version
  shift
  for package in "$@"; do
    [ -x "$cache/$(name "$package")" ] || missing=1
  done
  [ $missing = 0 ] && return
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "tests/testbed/modules/$module/go.mod")
  fresh=$(mktemp -d "$root/building.XXXXXX")
  echo "cluster: building $module into $cache (once, a few minutes)" >&2
  (
    cd "tests/testbed/modules/$module"
    for package in "$@"; do
      [ -x "$cache/$(name "$package")" ] && continue
      # The toolchain is the machine's: a newer one is never fetched. A build that is not told its
      # version calls itself v0.0.0, which clients and helm charts refuse.
      GOTOOLCHAIN=local CGO_ENABLED=0 "$go" build ${GO_JOBS:+-p "$GO_JOBS"} -trimpath -mod=readonly \
        -ldflags="-s -w ${version:+-X k8s.io/component-base/version.gitVersion=$version}" \
        -o "$fresh/$(name "$package")" "$package"
    done
  )
  mv "$fresh"/* "$cache/"
  rmdir "$fresh"
}

name() {
  case $1 in
    go.etcd.io/*) echo etcd ;;
    .) echo coredns ;;
    *) basename "$1" ;;
  esac
}

whole() {
  local tool
  for tool in $tools; do
    [ -x "$cache/$tool" ] || return 1
  done
}

if ! whole; then
  if [ "${1:-}" = --no-build ]; then
    echo "cluster: the tools are not built ($tools); run scripts/cluster_tools.sh" >&2
    exit 3
  fi
  mkdir -p "$cache"
  exec 9>"$cache/.lock"
  flock 9
  go=$(scripts/find_go.sh)
  build etcd go.etcd.io/etcd/server/v3
  build kubernetes k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
    k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl
  build helm helm.sh/helm/v4/cmd/helm
  case $tools in *kubelet*)
    build kubernetes k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-proxy
    build coredns .
    ;;
  esac
fi
printf '%s\n' "$cache"
