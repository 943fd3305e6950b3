#!/usr/bin/env bash
# Makes a Debian package of what was built, and looks at it. ./x deb runs this.
#
#   packaging/deb.sh BINARY OUTPUT_FOLDER [--links]
#
# With --links the package has zpool, zfs, zdb, zstream and mount.zfs where commands are looked for,
# stands in for OpenZFS's packages (Provides: zfsutils), and is not installed beside them.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
top=${here%/*}

binary=$1 output=$2 links=${3:-}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
architecture=$(dpkg --print-architecture)
name=cenote${links:+-zfs}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
DESTDIR=$work bash "$here/install.sh" "$binary" /usr ${links:+"$links"}
documents=$work/usr/share/doc/$name
mkdir -p "$documents"
cp "$top"/README.md "$top"/docs/*.md "$documents/"
gzip -9nc "$top/CHANGELOG.md" > "$documents/changelog.gz"
{ cat "$top/LICENSE-MIT"; printf '\n\nor, at your option:\n\n'; cat "$top/LICENSE-APACHE"; } \
  > "$documents/copyright"

# What it needs is the C library that it was linked with; fusermount3 only to mount without root.
libc=$(objdump -T "$binary" 2>/dev/null | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' |
  sort -uV | tail -n 1) || true
[ -n "$libc" ] || libc=$(dpkg-query -W -f '${Version}' libc6 | grep -o '^[0-9]*\.[0-9]*')
mkdir "$work/DEBIAN"
{
  cat <<END
Package: $name
Version: $version
Architecture: $architecture
Maintainer: The cenote developers <cenote@localhost>
Installed-Size: $(du -sk "$work/usr" | cut -f 1)
Depends: libc6 (>= $libc), libgcc-s1
Recommends: fuse3
Suggests: nbd-client, prometheus-node-exporter
Section: admin
Priority: optional
END
  if [ -n "$links" ]; then
    printf 'Provides: cenote, zfsutils\nConflicts: cenote, zfsutils-linux, zfs-fuse\nReplaces: cenote\n'
  fi
  cat <<'END'
Description: OpenZFS pools without a kernel module
 cenote reads and writes pools of the OpenZFS format in user space: a daemon
 keeps pools, mounts their file systems through FUSE and serves their volumes
 over NBD; zpool, zfs and zdb have OpenZFS's options and output. Pools that are
 damaged, degraded or old can be looked into without importing them.
END
} > "$work/DEBIAN/control"
(cd "$work" && find usr -type f -exec md5sum {} +) > "$work/DEBIAN/md5sums"
find "$work" -type d -exec chmod 755 {} +
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)
fi
export SOURCE_DATE_EPOCH

mkdir -p "$output"
package=$output/${name}_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$work" "$package" >/dev/null

# What is in it is what was meant to be.
dpkg-deb -I "$package" | sed -n '/ Package:/,$p'
contents=$(dpkg-deb -c "$package")
wanted="./usr/bin/cenote ./usr/lib/cenote/bin/zpool ./usr/lib/cenote/sbin/mount.zfs
  ./usr/share/man/man8/cenote.8.gz ./usr/share/man/man8/cenote-zpool-create.8.gz
  ./usr/share/man/man8/cenote-lab.8.gz ./usr/share/bash-completion/completions/cenote
  ./usr/share/zsh/vendor-completions/_cenote ./usr/share/doc/$name/copyright"
[ -z "$links" ] || wanted="$wanted ./usr/sbin/zpool ./usr/sbin/mount.zfs
  ./usr/share/man/man8/zpool-create.8.gz"
for file in $wanted; do
  grep -qF " $file" <<<"$contents" || { echo "$package lacks $file" >&2; exit 1; }
done
if awk '$2 != "root/root"' <<<"$contents" | grep -q .; then
  echo "$package has files that are not root's" >&2; exit 1
fi
dpkg-deb --fsys-tarfile "$package" | tar -xOf - ./usr/bin/cenote | cmp - "$work/usr/bin/cenote"
printf '%s: %s files, %s\n' "$package" "$(wc -l <<<"$contents")" "$(du -h "$package" | cut -f 1)"
