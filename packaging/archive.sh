#!/usr/bin/env bash
# Packs a static program with its installer, and installs it from there. ./x static runs this.
#
#   packaging/archive.sh BINARY OUTPUT_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
top=${here%/*}

binary=$1 output=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
name=cenote-$version-linux-$(uname -m)
# Bytes of the program: it had 18.7 million when this was written, and is not to grow unnoticed.
most=20000000

if objdump -p "$binary" | grep -E 'NEEDED|INTERP'; then
  echo "$binary needs libraries" >&2; exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
folder=$work/$name
mkdir "$folder"
install -m 755 "$binary" "$folder/cenote"
strip "$folder/cenote"
size=$(stat -c %s "$folder/cenote")
install -m 755 "$here/install.sh" "$folder/install.sh"
cp -r "$here/man" "$here/systemd" "$top/README.md" "$top/CHANGELOG.md" "$top"/LICENSE-* "$folder/"
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)
fi
mkdir -p "$output"
archive=$output/$name.tar.xz
tar -C "$work" --sort=name --owner=root:0 --group=root:0 --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
  xz -9 > "$archive"

# It is installed as somebody would who has nothing but the archive and a home directory.
mkdir "$work/unpacked" "$work/home"
tar -C "$work/unpacked" -xJf "$archive"
HOME=$work/home PREFIX=$work/home/.local sh -c '"$0"/install.sh' "$work/unpacked/$name"
HOME=$work/home "$work/home/.local/bin/cenote" --version
for file in lib/cenote/bin/zpool share/man/man8/cenote-zpool-create.8.gz \
  share/bash-completion/completions/cenote share/systemd/user/cenote.service; do
  [ -e "$work/home/.local/$file" ] || { echo "the installer left out $file" >&2; exit 1; }
done
printf '%s: %s, with a program of %s bytes\n' "$archive" "$(du -h "$archive" | cut -f 1)" "$size"
[ "$size" -le "$most" ] || { echo "the program may have $most bytes" >&2; exit 1; }
