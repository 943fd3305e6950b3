#!/usr/bin/env bash
# Copies what was built to where it is used. ./x install and ./x deb run this.
#
#   packaging/install.sh BINARY PREFIX [--links]
#
# DESTDIR goes in front of all paths. zpool, zfs, zdb, zstream and mount.zfs are links in
# PREFIX/lib/cenote, where they are in nobody's way; --links puts them where commands are looked
# for, too.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

binary=$1 prefix=$2 links=${3:-}
root=${DESTDIR:-}$prefix
case $links in "" | --links) ;; *) echo "unknown option: $links" >&2; exit 2 ;; esac

install -Dm 755 "$binary" "$root/bin/cenote"
# Line tables for backtraces are four fifths of the file; whoever needs them has target/release.
if command -v strip >/dev/null 2>&1; then strip "$root/bin/cenote"; fi

mkdir -p "$root/lib/cenote/bin" "$root/lib/cenote/sbin"
for tool in zpool zfs zdb zstream; do ln -sfn ../../../bin/cenote "$root/lib/cenote/bin/$tool"; done
ln -sfn ../../../bin/cenote "$root/lib/cenote/sbin/mount.zfs"
if [ -n "$links" ]; then
  mkdir -p "$root/sbin"
  for tool in zpool zfs zdb zstream mount.zfs; do ln -sfn ../bin/cenote "$root/sbin/$tool"; done
fi

mkdir -p "$root/share/man/man8"
gzip -9nc "$here/man/cenote.8" > "$root/share/man/man8/cenote.8.gz"

bash_dir=$root/share/bash-completion/completions
zsh_dir=$root/share/zsh/vendor-completions
mkdir -p "$bash_dir" "$zsh_dir"
"$binary" completions bash > "$bash_dir/cenote"
"$binary" completions zsh > "$zsh_dir/_cenote"
if [ -n "$links" ]; then
  for tool in zpool zfs; do ln -sfn cenote "$bash_dir/$tool"; done
fi

# Units of a home directory are looked for in another place than those of a system.
case $prefix in
  "${HOME:-/nonexistent}"/*) unit_dirs=(user:share/systemd/user) ;;
  *) unit_dirs=(system:lib/systemd/system user:lib/systemd/user) ;;
esac
for unit_dir in "${unit_dirs[@]}"; do
  for unit in "$here/systemd/${unit_dir%%:*}"/*; do
    [ -f "$unit" ] || continue
    mkdir -p "$root/${unit_dir#*:}"
    sed "s|^ExecStart=cenote |ExecStart=$prefix/bin/cenote |" "$unit" > "$root/${unit_dir#*:}/${unit##*/}"
  done
done
