#!/usr/bin/env bash
# node.sh NAME FOLDER GROUP: a node's namespaces, and lines of shell from standard input in them, until that
# ends. Then everything in the node ends, and its cgroups go: also when whoever writes the lines was killed.
# Changes nothing of the machine but cgroups GROUP below this process's own ones.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
controllers="cpu cpuacct cpuset memory devices freezer blkio pids name=systemd"

# place CONTROLLER: the node's group of it
place() {
  local own
  own=$(awk -F: -v c="$1" '$2 == c { print $3 }' /proc/self/cgroup)
  own=/sys/fs/cgroup/${1#name=}$own
  printf '%s\n' "${own%/}/$group"
}

remove_groups() {
  local one try
  for try in $(seq 50); do
    for one in "${places[@]}"; do
      [ ! -d "$one" ] || find "$one" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    for one in "${places[@]}"; do [ ! -d "$one" ] || { sleep 0.1; continue 2; }; done
    return
  done
}

name=$1 folder=$2 group=$3
places=()
for one in $controllers; do places+=("$(place "$one")"); done
(
  for one in "${places[@]}"; do
    mkdir -p "$one"
    case $one in
      */cpuset/*)
        cat "$one/../cpuset.cpus" >"$one/cpuset.cpus"
        cat "$one/../cpuset.mems" >"$one/cpuset.mems"
        ;;
      # A group weighs as much as one process by default, however many run in it.
      */cpu/*) echo 16384 >"$one/cpu.shares" ;;
    esac
    echo "$BASHPID" >"$one/cgroup.procs"
  done
  exec unshare -m -n -C -i -u -p --fork --kill-child --mount-proc --propagation private \
    bash "$here/node_inside.sh" "$name" "$folder"
)
remove_groups
