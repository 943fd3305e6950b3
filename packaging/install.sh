#!/usr/bin/env bash
# Copies what was built to where it is used. ./x install and ./x deb run this, and whoever unpacks
# the archive of ./x static.
#
#   packaging/install.sh [BINARY [PREFIX]] [--links]
#
# BINARY is the program beside this file unless another one is named. PREFIX may be in the
# environment; without it it is /usr/local if that may be written, or ~/.local. DESTDIR goes in front
# of all paths. zpool, zfs, zdb, zstream and mount.zfs are links in PREFIX/lib/cenote, where they are
# in nobody's way; --links puts them where commands are looked for, too.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

links='' places=()
for word in "$@"; do
  case $word in
    --links) links=$word ;;
    -*) echo "unknown option: $word" >&2; exit 2 ;;
    *) places+=("$word") ;;
  esac
done
binary=${places[0]:-$here/cenote} prefix=${places[1]:-${PREFIX:-}}
if [ -z "$prefix" ]; then
  prefix=/usr/local
  if [ ! -w /usr/local/bin ]; then prefix=$HOME/.local; fi
fi
root=${DESTDIR:-}$prefix

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
# Pages of zpool and zfs have names of their own, too: OpenZFS's may be installed beside them.
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$binary" manual --out "$pages" >/dev/null
for page in "$pages"/*.8; do
  name=${page##*/}
  gzip -9nc "$page" > "$root/share/man/man8/cenote-${name#cenote-}.gz"
  case $name in
    cenote-*) ;;
    *) if [ -n "$links" ]; then ln -sfn "cenote-$name.gz" "$root/share/man/man8/$name.gz"; fi ;;
  esac
done

bash_dir=$root/share/bash-completion/completions
zsh_dir=$root/share/zsh/vendor-completions
mkdir -p "$bash_dir" "$zsh_dir"
"$binary" completions bash > "$bash_dir/cenote"
"$binary" completions zsh > "$zsh_dir/_cenote"
mkdir -p "$root/share/fish/vendor_completions.d"
"$binary" completions fish > "$root/share/fish/vendor_completions.d/cenote.fish"
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
if [ -z "${DESTDIR:-}" ]; then
  echo "installed $prefix/bin/cenote; zpool, zfs, zdb and zstream are in $prefix/lib/cenote/bin"
fi
