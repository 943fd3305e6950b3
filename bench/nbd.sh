#!/usr/bin/env bash
# nbd: a volume served over NBD beside qemu-nbd and a qcow2 image on the same disk, by the same
# client (fio's nbd engine), over unix sockets. As root, since it drops the kernel's cache.
# nbd.sh [KIB...]: sizes of requests (4 16 64 128).
# BENCH_DIR: where both lie (default: target/bench), BENCH_MIB: size (default 1024), BENCH_SECONDS:
# of each row (default 5), BENCH_ROUNDS: how often each is measured, in turn; the best counts (2).
here=$(dirname "$(dirname "$(readlink -f "$0")")")
dir=${BENCH_DIR:-$here/target/bench}/nbd mib=${BENCH_MIB:-1024}
seconds=${BENCH_SECONDS:-5} rounds=${BENCH_ROUNDS:-2}
mkdir -p "$dir"
CONFORMANCE_DIR=$dir . "$here/conformance/common.sh"
need fio fio
need qemu-nbd qemu-utils
fio --enghelp | grep -q nbd || die "this fio has no engine for nbd"

# --- the servers: each has `make_X`, `serve_X` and a name to connect to, `export_X` --------------

make_cenote() {
  rm -rf "$dir/cenote"; mkdir -p "$dir/cenote"
  truncate -s $((mib * 5))M "$dir/cenote/d0"
  "$CENOTE" zpool --embedded -d "$dir/cenote" create -O compression=lz4 -O mountpoint=none \
    t "$dir/cenote/d0"
  "$CENOTE" zfs --embedded -d "$dir/cenote" create -V "${mib}M" t/v
  "$CENOTE" zpool --embedded -d "$dir/cenote" export t
}
serve_cenote() { "$CENOTE" nbd -d "$dir/cenote" --socket "$dir/socket" t >"$dir/said" 2>&1 & }
export_cenote=t/v

make_qemu() { qemu-img create -q -f qcow2 "$dir/image.qcow2" "${mib}M"; }
serve_qemu() {
  qemu-nbd --format=qcow2 --cache=writeback --aio=threads --discard=unmap --shared=8 --persistent \
    --export-name=v --socket="$dir/socket" "$dir/image.qcow2" >"$dir/said" 2>&1 &
}
export_qemu=v

start_server() { # SERVER
  rm -f "$dir/socket"
  serve_"$1"
  server=$!
  until [ -S "$dir/socket" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$dir/said" >&2; die "$1 does not start"; }
    sleep 0.1
  done
}
stop_server() {
  [ -z "${server:-}" ] || { kill "$server" 2>/dev/null; wait "$server" || true; }
  server=
}
trap 'stop_server; rm -rf "$dir"' EXIT

# --- the load ------------------------------------------------------------------------------------

# MB/s of one load; data is 2:1 compressible, writes end with a flush.
load() { # SERVER RW KIB [OPTION...]
  local name=export_$1
  fio --name=load --ioengine=nbd --uri="nbd+unix:///${!name}?socket=$dir/socket" --rw="$2" \
    --bs="$3"k --iodepth=16 --size="${mib}M" --randseed=7 --buffer_compress_percentage=50 \
    --refill_buffers --end_fsync=1 --output-format=json --output="$dir/fio" "${@:4}" \
    >"$dir/fio-said" 2>&1 || { cat "$dir/fio-said" "$dir/said" >&2; die "fio fails with $1"; }
  python3 - "$dir/fio" "$2" <<'PY'
import json, sys
job = json.loads("{" + open(sys.argv[1]).read().partition("{")[2])["jobs"][0]
assert job["error"] == 0
side = job["read" if "read" in sys.argv[2] else "write"]
# What a flush at the end takes belongs to the writing.
print(f"{side['io_bytes'] / 1e3 / max(job['job_runtime'], side['runtime']):.1f}")
PY
}

measure() { # SERVER; lines "SERVER KIB RW MB/s"
  local kib rw
  for kib in "${sizes[@]}"; do
    for rw in read randread write randwrite; do
      # Nothing is in memory when it is read: not in the kernel's cache, and not in the server's.
      stop_server
      drop
      start_server "$1"
      printf '%s %s %s %s\n' "$1" "$kib" "$rw" \
        "$(load "$1" "$rw" "$kib" --time_based --runtime="$seconds")"
    done
  done
  stop_server
}

sizes=("$@"); [ $# -gt 0 ] || sizes=(4 16 64 128)
for one in cenote qemu; do
  make_$one >&2
  start_server $one
  load $one write 1024 >/dev/null
  stop_server
done
for ((round = 0; round < rounds; round++)); do
  for one in cenote qemu; do measure $one; done
done | tee "$dir/figures" >&2
awk -v mib="$mib" '
  { key = $2 " " $3; if (!(key in seen)) { seen[key] = 1; order[++rows] = key }
    if ($4 > best[$1 " " key]) best[$1 " " key] = $4 }
  END {
    printf "%d MiB, 2:1 compressible, 16 at a time, MB/s (best of all rounds)\n", mib
    printf "%-24s %9s %9s %6s\n", "", "cenote", "qemu-nbd", "ratio"
    for (i = 1; i <= rows; i++) {
      ours = best["cenote " order[i]]; theirs = best["qemu " order[i]]
      split(order[i], part, " ")
      printf "%-24s %9.0f %9.0f %6.2f\n", part[2] " " part[1] "K", ours, theirs, ours / theirs
    }
  }' "$dir/figures"
"$CENOTE" verify --leaks -d "$dir/cenote" t >/dev/null || die "the pool is damaged"
