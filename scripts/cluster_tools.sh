#!/usr/bin/env bash
# Builds what a test cluster is made of (etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler, kubectl, helm; with --nodes what real nodes need, too: kubelet, kube-proxy, coredns)
# from the Go modules pinned in tests/testbed/modules/*/go.mod, once, into a cache outside the checkout,
# and prints the folder they are in. Warm it only prints. --metrics, --queue and --policies do so with
# prometheus and promtool, kueue, or kube-router alone, which have folders of their own: a test cluster
# runs without them. Where there is no Go, scripts/find_go.sh supplies one.
# Usage: scripts/cluster_tools.sh [--nodes|--metrics|--queue|--policies] [--no-build]; GO_JOBS bounds the
# compiles that run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."

tools="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm"
modules="coredns etcd helm kubernetes"
set=cluster
case ${1:-} in
  --nodes) tools="$tools kubelet kube-proxy coredns" ;;
  --metrics) tools="prometheus promtool" modules=prometheus set=prometheus ;;
  --queue) tools=kueue modules=kueue set=kueue ;;
  --policies) tools=kube-router modules=kube-router set=kube-router ;;
  *) set -- "" "$@" ;;
esac
shift
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
# By content: a change of any pinned version is another folder, and the old one still serves the
# branch that wants it.
files=
for kind in go.mod go.sum; do
  for one in $modules; do files="$files tests/testbed/modules/$one/$kind"; done
done
[ $set != cluster ] || files="$files tests/testbed/modules/coredns/main.go"
# shellcheck disable=SC2086 # names without spaces
digest=$(cat $files | sha256sum | cut -c1-12)
cache=$root/$set-$digest

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
      GOTOOLCHAIN=local CGO_ENABLED=0 "$go" build ${GO_JOBS:+-p "$GO_JOBS"} -trimpath -mod=readonly ${tags:+-tags "$tags"} \
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

build_cluster() {
  build etcd go.etcd.io/etcd/server/v3
  build kubernetes k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
    k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl
  build helm helm.sh/helm/v4/cmd/helm
  case $tools in *kubelet*)
    build kubernetes k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-proxy
    build coredns .
    ;;
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
  case $set in
    prometheus)
      tags=remove_all_sd,enable_kubernetes_sd
      build prometheus github.com/prometheus/prometheus/cmd/{prometheus,promtool}
      ;;
    kueue) # what a cluster needs of it beside the program first: the program is what is looked for
      # A module that is not there yet has no Dir: download it first.
      of=$(cd tests/testbed/modules/kueue && GOTOOLCHAIN=local "$go" mod download sigs.k8s.io/kueue \
        && GOTOOLCHAIN=local "$go" list -m -f '{{.Dir}}' sigs.k8s.io/kueue)
      install -D -m 644 -t "$cache/crds" "$of"/config/components/crd/bases/*.yaml
      install -m 644 "$of/config/components/webhook/manifests.yaml" "$cache/webhooks.yaml"
      build kueue sigs.k8s.io/kueue/cmd/kueue
      ;;
    kube-router)
      scripts/debian_packages.sh iptables:iptables ipset:ipset
      build kube-router github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
      ;;
    cluster) build_cluster ;;
  esac
fi
printf '%s\n' "$cache"
