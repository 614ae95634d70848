#!/usr/bin/env bash
# Makes what real nodes of a test cluster run: the images of scripts/images.sh on Debian's packages, unpacked
# in a folder that a node's containerd begins with. Prints that folder; its file `tag` has their tag, NAME.json what
# buildah knows of each. In the cache outside the checkout, by content: what the product's files, the
# packages and this script are. Warm it only prints.
# torch is not in them: nodes show their pods the checkout's own, whose Python is therefore Debian's, too.
# Needs root and a C compiler; installs Debian packages that are missing, where there is apt.
# Usage: scripts/node_image.sh [--no-build]
set -euo pipefail
cd "$(dirname "$0")/.."

packages="containerd:containerd runc:runc buildah:buildah /usr/lib/cni/bridge:containernetworking-plugins
  iptables:iptables nft:nftables conntrack:conntrack debootstrap:debootstrap"
files=tests/testbed/cluster/real/files
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
kept=3 # images, so that several checkouts have theirs

fail() {
  echo "node: $*" >&2
  exit 3
}

[ "$(id -u)" = 0 ] || fail "real nodes need root"
[ -d /sys/fs/cgroup/cpuset ] || fail "real nodes need cgroup v1, which is not mounted here"

digest=$(
  {
    cat scripts/{node_image,images,debian_packages}.sh "$files/pause.c" pyproject.toml hatch_build.py
    git ls-files -z images operator master worker_agent cli proto | xargs -0 sha256sum
  } | sha256sum | cut -c1-12
)
done=$root/image-$digest
# The operator's, and what a user makes of the worker's: here with the path of the host's torch.
images="localhost/holdfast localhost/holdfast-train"

build_images() {
  local one storage="--root $root/layers --runroot $fresh/run" options="--quiet --layers --isolation chroot"
  # Their commit is not a part of the key, so no label may claim it.
  TAG=$digest TORCH=none BASE= REVISION= CREATED= scripts/images.sh --storage "$root/layers" --no-report
  cc -static -Os -s -o "$fresh/context/pause" "$files/pause.c"
  printf 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n' >"$fresh/context/pause.file"
  printf 'FROM localhost/holdfast-worker:%s\nUSER root\nRUN %s\nUSER 65532:65532\n' "$digest" \
    "echo /opt/host-site >\$(python3 -c 'import site; print(site.getsitepackages()[0])')/zz-host.pth" \
    >"$fresh/context/train.file"
  buildah $storage bud $options -t localhost/holdfast-pause:local -f "$fresh/context/pause.file" "$fresh/context" >&2
  buildah $storage bud $options -t "localhost/holdfast-train:$digest" -f "$fresh/context/train.file" "$fresh/context" >&2
  for one in localhost/holdfast-pause:local ${images// /:$digest }:$digest; do
    buildah $storage push --quiet --disable-compression "$one" "oci-archive:$fresh/$(basename "${one%:*}").tar:$one" >&2
  done
  for one in holdfast holdfast-worker; do
    buildah $storage inspect "localhost/$one:$digest" >"$fresh/$one.json"
  done
  # The dependencies have names of their own, and stay.
  buildah $storage rmi --force ${images// /:$digest }:$digest "localhost/holdfast-worker:$digest" >/dev/null 2>&1 || true
  buildah $storage rmi --prune >/dev/null 2>&1 || true
}

# A folder of containerd with both images unpacked. Nodes begin with hard links to its layers.
unpack() {
  local newest=
  newest=$(find "$root" -maxdepth 1 -name 'image-*' -printf '%T@ %p\n' | sort -rn | head -1 | cut -d' ' -f2-)
  if [ -n "$newest" ]; then # the layers of the base are there already
    copy_containerd "$newest/containerd" "$fresh/containerd"
  fi
  printf 'version = 2\nroot = "%s"\nstate = "%s"\n[grpc]\n  address = "%s"\n' \
    "$fresh/containerd" "$fresh/state" "$fresh/sock" >"$fresh/containerd.toml"
  # Without the lock, which ends with this script.
  containerd --config "$fresh/containerd.toml" >"$fresh/containerd.log" 2>&1 9>&- &
  daemon=$!
  local tar old
  for _ in $(seq 100); do
    ctr -a "$fresh/sock" version >/dev/null 2>&1 && break
    sleep 0.1
  done
  for old in $(ctr -a "$fresh/sock" -n k8s.io images ls -q | grep -E "^localhost/holdfast(-train)?:" || true); do
    ctr -a "$fresh/sock" -n k8s.io images rm "$old" >&2
  done
  for tar in "$fresh"/holdfast*.tar; do
    ctr -a "$fresh/sock" -n k8s.io images import --snapshotter overlayfs "$tar" >&2
  done
  kill "$daemon"
  wait "$daemon" || true
  daemon=
}

copy_containerd() {
  cp -al "$1" "$2"
  # What containerd writes in place; layers and blobs it only ever adds and removes.
  find "$2" -name '*.db' -exec sh -c 'cp -p "$1" "$1.own" && mv "$1.own" "$1"' _ {} \;
}

if [ ! -e "$done/tag" ]; then
  [ "${1:-}" != --no-build ] || fail "the image is not built; run scripts/node_image.sh"
  # Mounts of buildah stay in a namespace of their own, and end with it.
  [ -n "${HOLDFAST_IMAGE_INSIDE:-}" ] ||
    exec env HOLDFAST_IMAGE_INSIDE=1 unshare -m --propagation private "scripts/node_image.sh"
  mkdir -p "$root"
  exec 9>"$root/.image-lock"
  flock 9
  if [ ! -e "$done/tag" ]; then
    scripts/debian_packages.sh $packages || fail "real nodes need packages"
    fresh=$(mktemp -d "$root/imaging.XXXXXX")
    daemon= # of `unpack`
    trap '[ -z "$daemon" ] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$fresh"' EXIT
    mkdir "$fresh/context"
    build_images
    unpack
    mkdir "$fresh/done"
    mv "$fresh/containerd" "$fresh"/holdfast*.json "$fresh/done/"
    echo "$digest" >"$fresh/done/tag"
    mv -T "$fresh/done" "$done"
    find "$root" -maxdepth 1 -name 'image-*' -printf '%T@ %p\n' | sort -rn | tail -n +$((kept + 1)) |
      cut -d' ' -f2- | xargs -r rm -rf
  fi
fi
printf '%s\n' "$done"
