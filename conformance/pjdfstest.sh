#!/usr/bin/env bash
# pjdfstest: what POSIX says of names, rights, owners and times, asked through the kernel.
# `pjdfstest.sh peer` asks bindfs, another FUSE file system, which hands everything to the one below.
. "$(dirname "$(readlink -f "$0")")/common.sh"
need setfacl acl libacl1-dev
need_crate pjdfstest 0.2.2

name=pjdfstest
if [ "${1:-}" = peer ]; then
  name=pjdfstest-peer
  unpack bindfs bindfs libfuse2
  mkdir -p "$work/$name/below" "$work/$name/at"; chmod 755 "$work/$name" "$work/$name"/*
  LD_LIBRARY_PATH=$(dirname "$(find "$tools/bindfs" -name 'libfuse.so.2')") \
    "$tools/bindfs/usr/bin/bindfs" -f -o allow_other,default_permissions,use_ino \
    "$work/$name/below" "$work/$name/at" &
  mounted=($! "$work/$name/at")
  until mountpoint -q "$work/$name/at"; do sleep 0.1; done
else
  make_pool $name 1024 compression=lz4
  start $name
fi
other=$(mktemp -d)
trap 'rm -rf "$other"; leave' EXIT
# The suite mounts read-only and back with mount(8), which for a type `fuse.X` would run a program X.
mkdir "$other/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" > "$other/bin/mount"
chmod +x "$other/bin/mount"
run() { # OPTION...
  PATH=$other/bin:$PATH "$tools/bin/pjdfstest" -p "$work/$name/at" -s "$other" "$@" 2>&1 |
    sed -r 's/\x1b\[[0-9;]*m//g'
}
# What mounts read-only has a process of its own for each test: the suite leaves files open, which
# only an end of the process closes, and a file system with files open for writing stays writable.
{ run -c "$here/conformance/pjdfstest.toml" || true; } > "$work/$name/log"
sed 's/^allow_remount.*/allow_remount = true/' "$here/conformance/pjdfstest.toml" > "$other/remount"
for test in $(awk '$1 ~ /::erofs/ && $2 == "skipped" { print $1 }' "$work/$name/log"); do
  run -c "$other/remount" -e "pjdfstest::tests::$test" || true
done > "$work/$name/log-erofs"
grep -h -A1 'FAILED$' "$work/$name/log" "$work/$name/log-erofs" || true
count() { cat "$work/$name/log" "$work/$name/log-erofs" | grep -c " $1\$" || true; }
passed=$(count ok) failed=$(count FAILED)
skipped=$(($(grep -c ' skipped$' "$work/$name/log" || true) - $(grep -c -e ' ok$' -e ' FAILED$' "$work/$name/log-erofs" || true)))
[ "$passed" -gt 0 ] || { tail "$work/$name/log" >&2; die "it did not run"; }
[ "$name" = pjdfstest ] && stop $name
row "$name 0.2.2" "$passed of $((passed + failed)), $skipped skipped"
