#!/usr/bin/env bash
# Makes what real nodes of a test cluster run: the image of examples/Dockerfile, on Debian's packages in
# place of a registry's base image, unpacked in a folder that a node's containerd begins with. Prints that
# folder; its file `image` has the image's name. In the cache outside the checkout, by content: what the
# product's files, the packages and this script are. Warm it only prints.
# torch is not in it: nodes show their pods the checkout's own, whose Python is therefore Debian's, too.
# Needs root and a C compiler; installs Debian packages that are missing, where there is apt.
# Usage: scripts/node_image.sh [--no-build]
set -euo pipefail
cd "$(dirname "$0")/.."

packages="containerd runc buildah containernetworking-plugins iptables nftables conntrack debootstrap"
programs="containerd runc buildah /usr/lib/cni/bridge iptables nft conntrack debootstrap"
files=tests/testbed/cluster/real/files
root=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast
python=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
declare -A suites=([3.11]=bookworm [3.13]=trixie)
suite=${suites[$python]:-}
kept=3 # images, so that several checkouts have theirs

fail() {
  echo "node: $*" >&2
  exit 3
}

[ "$(id -u)" = 0 ] || fail "real nodes need root"
[ -d /sys/fs/cgroup/cpuset ] || fail "real nodes need cgroup v1, which is not mounted here"
[ -n "$suite" ] || fail "torch in .venv is for Python $python, and Debian has 3.11 or 3.13: make .venv with one of them"

digest=$(
  {
    cat scripts/node_image.sh "$files/pause.c" examples/Dockerfile pyproject.toml hatch_build.py
    git ls-files -z operator master worker_agent cli proto | xargs -0 sha256sum
  } | sha256sum | cut -c1-12
)
done=$root/image-$digest
tag=localhost/holdfast:$digest

missing() {
  local program
  for program in $programs; do
    command -v "$program" >/dev/null || { echo "$program"; return; }
  done
}

install_packages() {
  [ -n "$(missing)" ] || return 0
  command -v apt-get >/dev/null || fail "$(missing) is missing, and there is no apt; install: $packages"
  echo "node: installing $packages" >&2
  # Without a runlevel nothing is started where there is no systemd. Nothing that is there goes: another
  # engine's packages may exclude these.
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-remove --no-install-recommends $packages >&2
  [ -z "$(missing)" ] || fail "$(missing) is missing after the installation of $packages"
}

# Debian with Python, from where this machine's own packages come.
root_file_system() {
  local to=$root/rootfs-$suite.tar mirror=
  [ ! -e "$to" ] || return 0
  mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
    awk '$1 == "URIs:" { print $2; exit } $1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }')
  echo "node: debootstrap of $suite (once, two minutes)" >&2
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip "$suite" "$fresh/rootfs" \
    ${mirror:+"$mirror"} >"$fresh/debootstrap.log" 2>&1 || { tail -5 "$fresh/debootstrap.log" >&2; return 1; }
  umount "$fresh/rootfs/proc" 2>/dev/null || true
  tar -C "$fresh/rootfs" --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' \
    --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' -cf "$to.$$" .
  mv "$to.$$" "$to"
}

# The project's Dockerfile without torch, on that base and an image of the dependencies, which a changed
# wheel leaves as it is.
write_dockerfiles() {
  local to=$1
  cc -static -Os -s -o "$to/pause" "$files/pause.c"
  ln "$root/rootfs-$suite.tar" "$to/rootfs.tar" 2>/dev/null || cp "$root/rootfs-$suite.tar" "$to/rootfs.tar"
  printf 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n' >"$to/Dockerfile.pause"
  printf 'FROM scratch\nADD rootfs.tar /\nENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore\n' >"$to/Dockerfile.base"
  .venv/bin/python - >"$to/requirements.txt" <<'END'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extra = project["optional-dependencies"]
print(*project["dependencies"], *extra["operator"], *extra["master"], *extra["agent"], sep="\n")
END
  .venv/bin/uv build --quiet --wheel --out-dir "$to/dist" >&2
  printf 'FROM localhost/holdfast-base:local\nCOPY requirements.txt /\nRUN pip install --no-cache-dir -r /requirements.txt\n' \
    >"$to/Dockerfile.dependencies"
  sed -e '/^#/d' -e 's#^FROM .*#FROM localhost/holdfast-dependencies:local#' -e 's#,train\]#]#' \
    -e "s#^USER#RUN echo /opt/host-site >/usr/local/lib/python$python/dist-packages/zz-host.pth\nUSER#" \
    examples/Dockerfile >"$to/Dockerfile"
}

build_images() {
  local one name
  local storage="--root $root/buildah --runroot $fresh/run"
  for one in pause base dependencies holdfast; do
    name=localhost/holdfast-$one:local
    [ $one != holdfast ] || name=$tag
    # --timestamp: equal contents are equal layers, in whichever checkout they are built.
    (cd "$fresh/context" && buildah $storage bud --quiet --layers --isolation chroot --network host \
      -v /etc/ssl/certs:/etc/ssl/certs:ro -t "$name" -f "Dockerfile$([ $one = holdfast ] || echo .$one)" . >&2)
  done
  for one in localhost/holdfast-pause:local "$tag"; do
    name=${one##*/}
    buildah $storage push --quiet --disable-compression "$one" "oci-archive:$fresh/${name%%:*}.tar:$one" >&2
  done
  buildah $storage rmi "$tag" >/dev/null 2>&1 || true
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
  for old in $(ctr -a "$fresh/sock" -n k8s.io images ls -q | grep "^${tag%:*}:" || true); do
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

if [ ! -e "$done/image" ]; then
  [ "${1:-}" != --no-build ] || fail "the image is not built; run scripts/node_image.sh"
  # Mounts of debootstrap and buildah stay in a namespace of their own, and end with it.
  [ -n "${HOLDFAST_IMAGE_INSIDE:-}" ] ||
    exec env HOLDFAST_IMAGE_INSIDE=1 unshare -m --propagation private "scripts/node_image.sh"
  mkdir -p "$root"
  exec 9>"$root/.image-lock"
  flock 9
  if [ ! -e "$done/image" ]; then
    install_packages
    fresh=$(mktemp -d "$root/imaging.XXXXXX")
    daemon= # of `unpack`
    trap '[ -z "$daemon" ] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$fresh"' EXIT
    mkdir "$fresh/context"
    root_file_system
    write_dockerfiles "$fresh/context"
    build_images
    unpack
    mkdir "$fresh/done"
    mv "$fresh/containerd" "$fresh/done/"
    echo "$tag" >"$fresh/done/image"
    mv -T "$fresh/done" "$done"
    find "$root" -maxdepth 1 -name 'image-*' -printf '%T@ %p\n' | sort -rn | tail -n +$((kept + 1)) |
      cut -d' ' -f2- | xargs -r rm -rf
  fi
fi
printf '%s\n' "$done"
