#!/bin/sh
# Installs with pip, and compiles what came with it, so that equal inputs make equal files: pip's own
# byte code bears the time of its source. What the image had before stays untouched.
# Usage: install.sh ARGUMENTS-OF-PIP-INSTALL...
set -eu
# In an image the distribution's Python is the user's own.
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
export PYTHONHASHSEED=0 # else sets in byte code are in any order
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
touch "$folder/before"
python3 -m pip install --no-cache-dir --no-compile "$@"
python3 -c 'import sysconfig; print(*sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}), sep="\n")' |
  while read -r site; do find "$site" -name '*.py' -newer "$folder/before"; done | LC_ALL=C sort >"$folder/sources"
# Some packages ship files for other versions of Python, which do not compile; pip passes over them, too.
python3 -m compileall -q --invalidation-mode unchecked-hash -i "$folder/sources" || true
