#!/usr/bin/env bash
# node_inside.sh NAME FOLDER: the first process of a node. Mounts, then runs the lines that it reads.
set -euo pipefail
name=$1 folder=$2
hostname "$name"
# What daemons write under /etc, /var and /run stays in the folder.
mkdir -p "$folder"/{var,var.work,etc,etc.work,containerd,kubelet,sysctl}
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$folder/etc,workdir=$folder/etc.work" /etc
mount -t overlay overlay -o "lowerdir=/var,upperdir=$folder/var,workdir=$folder/var.work" /var
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/containerd /var/lib/kubelet /etc/holdfast /etc/cni/net.d
mount --bind "$folder/containerd" /var/lib/containerd # overlayfs takes no overlayfs as its upper layer
mount --bind "$folder/kubelet" /var/lib/kubelet
# cgroup v1, with this namespace's root as the root.
umount -R -l /sys/fs/cgroup
umount -R -l /sys
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for one in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir "/sys/fs/cgroup/$one"
  mount -t cgroup -o "$one" cgroup "/sys/fs/cgroup/$one"
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
# What kubelet sets for the whole machine: files that have its values already.
mask() {
  printf '%s\n' "$2" >"$folder/sysctl/${1//\//.}"
  mount --bind "$folder/sysctl/${1//\//.}" "/proc/sys/$1"
}
mask vm/overcommit_memory 1
mask vm/panic_on_oom 0
mask kernel/panic 10
mask kernel/panic_on_oops 1
mask kernel/keys/root_maxkeys 1000000
mask kernel/keys/root_maxbytes 25000000
mount --make-rshared /
cp "$folder"/files/{containerd.toml,kubelet.yaml,proxy.yaml,resolv.conf} /etc/holdfast/
cp "$folder/files/cni.json" /etc/cni/net.d/10-pods.conflist
set +e
touch "$folder/ready"
while read -r line; do eval "$line"; done
