#!/usr/bin/env bash
# mount: a mounted file system beside zfs-fuse (Debian's, unpacked and not installed) and the
# kernel's btrfs on a loop file, in one run on one disk. As root.
# BENCH_DIR: where the pools go (default: target/bench), BENCH_MIB: size of the file (default 1024),
# BENCH_SECONDS: of what is timed (default 8), BENCH_FILES: small files (default 10000),
# BENCH_RECORDS: record sizes (default "128K 8K"),
# BENCH_PEERS: who is measured (default "cenote ring zfsfuse btrfs"); "cenote" uses /dev/fuse, and
# "ring" is cenote with FUSE through io_uring, where the kernel has it.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
dir=${BENCH_DIR:-$here/target/bench}/mount mib=${BENCH_MIB:-1024}
mkdir -p "$dir"
CONFORMANCE_DIR=$dir . "$here/conformance/common.sh"
need fio fio
size=$((mib * 5))

# --- what is mounted: each has `make_X RECORDS`, `again_X`, `end_X` ------------------------------

ring=/sys/module/fuse/parameters/enable_uring
offered=$(cat $ring 2>/dev/null || true)
offer() { [ -z "$offered" ] || echo "$1" > $ring; }

make_ours() { make_pool "$1" $size compression=lz4 recordsize="$2"; start "$1"; } # NAME RECORDS
again_ours() { umount "$dir/$1/at" && wait "${mounted[0]}"; start "$1"; }
end_ours() { umount "$dir/$1/at" && wait "${mounted[0]}"; mounted=(); rm -rf "${dir:?}/$1"; }

make_cenote() { offer N; make_ours cenote "$1"; }
again_cenote() { again_ours cenote; }
end_cenote() { end_ours cenote; }

make_ring() { offer Y; make_ours ring "$1"; }
again_ring() { again_ours ring; }
end_ring() { end_ours ring; }

make_zfsfuse() {
  mkdir -p "$dir/zfsfuse/at"
  truncate -s "${size}M" "$dir/zfsfuse/d0"
  start_zfs_fuse "$dir/zfsfuse"
  zfs_fuse zpool create -o cachefile=none -O compression=on -O recordsize="$1" -m "$dir/zfsfuse/at" \
    benchpeer "$dir/zfsfuse/d0"
}
again_zfsfuse() {
  zfs_fuse zpool export benchpeer
  zfs_fuse zpool import -o cachefile=none -d "$dir/zfsfuse" benchpeer
}
end_zfsfuse() {
  # Its pool goes with its file; it takes it for busy now and then, and would not destroy it.
  umount -l "$dir/zfsfuse/at"; kill "$peer"; wait "$peer" || true
  peer=; rm -rf "$dir/zfsfuse"
}

make_btrfs() {
  mkdir -p "$dir/btrfs/at"
  truncate -s "${size}M" "$dir/btrfs/d0"
  "$tools/btrfs-progs/sbin/mkfs.btrfs" -q "$dir/btrfs/d0"
  mount -o loop,compress=lzo "$dir/btrfs/d0" "$dir/btrfs/at"
}
again_btrfs() {
  umount "$dir/btrfs/at" && mount -o loop,compress=lzo "$dir/btrfs/d0" "$dir/btrfs/at"
}
end_btrfs() { umount "$dir/btrfs/at"; rm -rf "$dir/btrfs"; }

# --- the run -------------------------------------------------------------------------------------

clean() {
  offer "$offered"
  leave || true
  umount -l "$dir/zfsfuse/at" 2>/dev/null || true
  [ -z "${peer:-}" ] || kill "$peer" 2>/dev/null || true
  umount "$dir/btrfs/at" 2>/dev/null || true
}
trap clean EXIT

# What each peer's pool or file system is in is a sparse file. Here it was written before, once.
synced() { # RECORDS
  make_pool cenote 1024 >&2
  dd if=/dev/zero of="$dir/cenote/pool/d0" bs=1M count=1024 conv=notrunc,fsync status=none
  "$CENOTE" zpool --embedded -d "$dir/cenote/pool" create -f -O compression=lz4 \
    -O recordsize="$1" t "$dir/cenote/pool/d0" >&2
  "$CENOTE" zpool --embedded -d "$dir/cenote/pool" export t >&2
  start cenote >&2
  python3 "$here/bench/mount_load.py" "$dir/cenote/at" "$mib" synced
  end_cenote >&2
}

# A file that is written once, then 8K of it at a time with fdatasync, and 8K of it read at random
# when nothing is in memory: what the disk can do.
bare() {
  python3 - "$dir/bare" "$mib" <<'PY'
import os, random, sys, time
path, mib = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
os.unlink(path)
block = os.urandom(1 << 20)
for _ in range(mib):
    os.write(fd, block)
os.fsync(fd)

def tell(name, each):
    start, count = time.monotonic(), 0
    while time.monotonic() - start < 6:
        each(count)
        count += 1
    print(f"{name}, 1/s\t{count / (time.monotonic() - start):.1f}")

def write(count):
    os.pwrite(fd, block[:8192], count % 8192 * 8192)
    os.fdatasync(fd)

tell("write 8K, fsync each", write)
os.sync()
with open("/proc/sys/vm/drop_caches", "w") as caches:
    caches.write("3")
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
places = random.Random(1)
tell("read 8K at random, cold", lambda _: os.pread(fd, 8192, places.randrange(mib * 128) * 8192))
PY
}

run() { # PEER RECORDS; prints figures
  make_"$1" "$2" >&2
  local part
  for part in write read random files; do
    # Nothing is in memory: not in the kernel's cache, and not in that of the file system.
    [ $part = write ] || { again_"$1" >&2; drop; }
    python3 "$here/bench/mount_load.py" "$dir/$1/at" "$mib" $part
  done
  end_"$1" >&2
}

peers=${BENCH_PEERS:-"cenote ring zfsfuse btrfs"}
[ -n "$offered" ] || peers=${peers/ring/}
case $peers in *btrfs*) unpack btrfs-progs btrfs-progs ;; esac
for records in ${BENCH_RECORDS:-128K 8K}; do
  bare > "$dir/figures-bare"
  for peer_name in $peers; do
    # Of btrfs there are no records: one run is enough.
    [ "$peer_name" = btrfs ] && [ -s "$dir/figures-btrfs" ] && [ "$records" != 128K ] && continue
    run "$peer_name" "$records" > "$dir/figures-$peer_name"
    [ "$peer_name" != cenote ] || synced "$records" >> "$dir/figures-cenote"
  done
  python3 - "$dir" "$records" "$mib" $peers <<'PY'
import os, sys
folder, records, mib, *peers = sys.argv[1:]
def figures(name):
    path = f"{folder}/figures-{name}"
    rows = [line.rstrip().split("\t") for line in open(path)] if os.path.exists(path) else []
    return {name: float(value) for name, value in rows}
all_ = {name: figures(name) for name in [*peers, "bare"]}
all_["bare"]["the same, pool written before, 1/s"] = all_["bare"]["write 8K, fsync each, 1/s"]
print(f"\nrecords of {records}, {mib} MiB, data 2:1 compressible; cenote lz4, zfs-fuse lzjb, btrfs lzo")
names = ["cenote", *[name for name in [*peers, "bare"] if name != "cenote"]]
print("| what | " + " | ".join(names) + " | ratios |")
print("|---" * (len(names) + 2) + "|")
for what, ours in all_["cenote"].items():
    cells = [all_[name].get(what) for name in names]
    ratios = [f"{ours / cell:.2f}" for cell in cells[1:] if cell]
    print(f"| {what} | " + " | ".join(f"{cell:.0f}" if cell else "" for cell in cells)
          + f" | {', '.join(ratios)} |")
PY
done
