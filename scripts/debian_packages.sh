#!/usr/bin/env bash
# Installs the Debian packages whose programs are missing, where there is apt; else says which are.
# Usage: scripts/debian_packages.sh PROGRAM:PACKAGE...
set -euo pipefail

absent() { # its packages
  local one
  for one; do
    command -v "${one%%:*}" >/dev/null || printf '%s ' "${one#*:}"
  done
}

packages=$(absent "$@")
[ -n "$packages" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing, and there is no apt to install them as root: $packages" >&2
  exit 3
fi
echo "installing $packages" >&2
# Without a runlevel nothing is started where there is no systemd. Nothing that is there goes: another
# engine's packages may exclude these.
export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2
# shellcheck disable=SC2086 # words
apt-get install -y -qq --no-remove --no-install-recommends $packages >&2
packages=$(absent "$@")
[ -z "$packages" ] || { echo "still missing after their installation: $packages" >&2; exit 3; }
