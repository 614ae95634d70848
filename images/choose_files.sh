#!/bin/bash
# Copies the files of Debian's Python, of the libraries that it loads and of what those read into a
# folder: the root of an image without a shell. Scanners find the packages in dpkg/status.d.
# Usage: choose_files.sh FOLDER
set -euo pipefail
to=$1
python=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
packages="base-files tzdata media-types
  libc6 libgcc-s1 libstdc++6 zlib1g libssl3* libexpat1 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libzstd1
  python3-minimal $python $python-minimal lib$python-minimal lib$python-stdlib"

mkdir -p "$to"/{usr/{bin,sbin,lib,lib64},etc/ssl/certs,var/lib/dpkg/status.d,tmp}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$to/$folder"; done
set -f # dpkg reads the pattern
for package in $(dpkg-query -W -f '${Package}\n' $packages); do
  dpkg-query -s "$package" >"$to/var/lib/dpkg/status.d/$package"
  dpkg-query -L "$package" | while read -r file; do
    [ ! -e "$file" ] && [ ! -L "$file" ] || printf '%s\n' "$file"
  done
done | sort -u >/chosen-files
tar -C / --no-recursion -cf - -T /chosen-files 2>/dev/null | tar -C "$to" --keep-directory-symlink -xf -
cp -a /etc/passwd /etc/group /etc/nsswitch.conf "$to/etc/"
# Where a pod names no group, containerd takes it from here.
echo 'nonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin' >>"$to/etc/passwd"
echo 'nonroot:x:65532:' >>"$to/etc/group"
cp -aL /etc/ssl/certs/ca-certificates.crt "$to/etc/ssl/certs/"
find "$to/usr" -name __pycache__ -prune -exec rm -r {} +
# The interpreter's own modules, once: nobody can write beside them later.
PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash -s "$to" -p / "$to/usr/lib/$python" || true
rm -rf "$to"/usr/share/{doc,man,lintian,bug,pixmaps,applications}
chmod 1777 "$to/tmp"
