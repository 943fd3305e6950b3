#!/usr/bin/env bash
# send: streams of snapshots, sent to /dev/null and received, beside OpenZFS's engine in user space
# and zfs-fuse (Debian's, unpacked and not installed) with the same data, and beside what cenote does
# without a stream: `verify` of the pool, and writing the same file.
# send.sh [PART...]: full incremental snapshots fuse (all of them by default). `fuse` needs root.
# BENCH_DIR: where the pools go (default: target/bench), BENCH_MIB: how much data (2048),
# BENCH_FILES: small files, of which 100 change (1000000), BENCH_SNAPSHOTS: how many (10000),
# BENCH_ROUNDS: how often each is measured, in turn (3); the best round counts.
# BENCH_ENGINE: a program built before.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
: "${CENOTE:=$here/target/release/cenote}"
mkdir -p "${BENCH_DIR:=$here/target/bench}"
top=$(mktemp -d "$BENCH_DIR/cenote-bench.XXXXXX")
dir=$top/a
trap 'rm -rf "$top"' EXIT
engine=${BENCH_ENGINE:-${CARGO_TARGET_DIR:-$here/target}/release/engine}
[ -n "${BENCH_ENGINE:-}" ] ||
  cargo build --quiet --release --manifest-path "$here/Cargo.toml" -p cenote-bench --bin engine
parts=${*:-full incremental snapshots fuse}
mib=${BENCH_MIB:-2048} rounds=${BENCH_ROUNDS:-3}
files=${BENCH_FILES:-1000000} snapshots=${BENCH_SNAPSHOTS:-10000}

fresh() { rm -rf "$top"; mkdir -p "$dir" "$top/b"; }
has_peer() {
  { command -v python3 && command -v cc && ldconfig -p | grep libzpool.so.6; } >/dev/null 2>&1
}
peer() { python3 "$here/bench/send_peer.py" "$@"; }

# Prints seconds, seconds of processor time and peak memory in MiB of a command that must succeed;
# what it reads and prints goes from and to these files.
measure() { # FROM TO COMMAND...
  python3 - "$@" <<'PY'
import resource, subprocess, sys, time
source, target = open(sys.argv[1], "rb"), open(sys.argv[2], "wb"); start = time.monotonic()
subprocess.run(sys.argv[3:], stdin=source, stdout=target, check=True)
wall = time.monotonic() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{wall:.3f} {used.ru_utime + used.ru_stime:.2f} {used.ru_maxrss // 1024}")
PY
}
null=/dev/null
ours() { measure "$null" "$null" "$CENOTE" "$@"; }
send() { ours zfs --embedded -d "$dir" send "$@"; }
# The line "seconds cpu -" of what a peer printed.
seconds() { sed -n 's/^[a-z]*: .*MB\/s, \([0-9.]*\) s, cpu \([0-9.]*\) s$/\1 \2 -/p'; }

# Of lines "WHAT|seconds cpu memory": the best of each, as MB/s of $mib of data, and the ratio to the
# line "WHAT" of $1.
table() {
  awk -F'[| ]' -v mb="$(awk "BEGIN { print $mib * 1.048576 }")" -v base="$1" '
    NF < 4 { next }
    { what = $1; wall = $2; cpu = $3; memory = $4
      if (!(what in best)) { order[++count] = what; best[what] = wall; least[what] = cpu }
      if (wall < best[what]) best[what] = wall
      if (cpu < least[what]) least[what] = cpu
      if (memory + 0 > peak[what]) peak[what] = memory }
    END { printf "%-28s %8s %8s %8s %8s %10s\n", "", "MB/s", "seconds", "cpu s", "MiB", "of " base
      for (i = 1; i <= count; i++) { what = order[i]; label = what; gsub(/_/, " ", label)
        printf "%-28s %8.0f %8.2f %8.2f %8s %10.2f\n", label, mb / best[what], best[what],
          least[what], peak[what] ? peak[what] : "-", best[base] / best[what] } }'
}

# One file of $mib, sent from the page cache; then received from a file.
full() {
  local record round sent received writes
  for record in 131072 8192; do
    sent= received=
    for ((round = 0; round < rounds; round++)); do
      fresh
      writes=$("$engine" sendable "$dir" "$mib" "$record" 0 |
        sed -n 's/^write: .*MB\/s, \([0-9.]*\) s, cpu \([0-9.]*\) s$/\1 \2 -/p')
      received+="write|$writes"$'\n'
      cat "$dir/d0" >/dev/null
      sent+="verify|$(ours verify -d "$dir" tank)"$'\n'
      sent+="send_-c|$(send -c tank@one)"$'\n'
      sent+="send|$(send tank@one)"$'\n'
      if has_peer; then
        sent+="OpenZFS,_send_-c|$(peer send "$dir" tank tank@one - compressed | seconds)"$'\n'
        sent+="OpenZFS,_send|$(peer send "$dir" tank tank@one - expanded | seconds)"$'\n'
      fi
      for form in -c ""; do
        measure "$null" "$top/stream" "$CENOTE" zfs --embedded -d "$dir" send $form tank@one >/dev/null
        received+="receive_of_$form|$(received)"$'\n'
        has_peer && received+="OpenZFS,_receive_of_$form|$(theirs_received)"$'\n'
        sent+="verify-stream_of_$form|$(measure "$null" "$null" "$CENOTE" verify-stream "$top/stream")"$'\n'
      done
    done
    printf '\n%s MiB, lz4, records of %sK: sent to /dev/null\n' "$mib" $((record >> 10))
    table verify <<<"$sent"
    printf '\nreceived\n'
    table write <<<"$received"
  done
}

empty_pool() {
  rm -rf "$top/b"; mkdir "$top/b"; truncate -s $((mib * 2 + 65536))M "$top/b/d0"
  "$CENOTE" zpool --embedded -d "$top/b" create -O compression=lz4 -O mountpoint=none far "$top/b/d0"
  "$CENOTE" zpool --embedded -d "$top/b" export far
}
received() {
  empty_pool
  measure "$top/stream" "$null" "$CENOTE" zfs --embedded -d "$top/b" receive far/copy
}
theirs_received() {
  empty_pool
  peer receive "$top/b" far far/copy "$top/stream" | seconds
}

# A hundred of many files have changed.
incremental() {
  local round
  fresh
  "$engine" sendable "$dir" 0 131072 "$files"
  printf '\n100 of %s files have changed: seconds, cpu, MiB\n' "$files"
  for ((round = 0; round < rounds; round++)); do
    cat "$dir/d0" >/dev/null
    printf 'opening the pool alone        %s\n' "$(ours zfs --embedded -d "$dir" list -H tank)"
    printf 'send -i                       %s\n' "$(send -i @one tank@two)"
    has_peer && printf 'OpenZFS, send -i              %s\n' \
      "$(peer send "$dir" tank tank@two tank@one expanded | seconds)"
  done
}

# Packages up to an eighth, a quarter, half, and all of the snapshots. The first two are received: each
# snapshot that is received copies the keys of the deadlist before it, so that all of them together
# take time with the square of their number, as the format asks.
packages() {
  local count stream=$top/stream
  fresh
  "$engine" snapshots "$dir" "$snapshots"
  printf '\n-R of so many snapshots: seconds, cpu, MiB\n'
  for count in $((snapshots / 8)) $((snapshots / 4)) $((snapshots / 2)) "$snapshots"; do
    printf '%-8s sent      %s\n' "$count" \
      "$(measure "$null" "$stream" "$CENOTE" zfs --embedded -d "$dir" send -R tank@$((count - 1)))"
    [ "$count" -gt $((snapshots / 4)) ] || printf '%-8s received  %s\n' "$count" "$(received)"
  done
}

# The same data in a pool of zfs-fuse, sent and received by it.
fuse() (
  work=$top/fuse
  CONFORMANCE_DIR=$work . "$here/conformance/common.sh"
  fresh; mkdir -p "$work/at"
  trap 'umount -l "$work/at" 2>/dev/null; kill -9 "$peer" 2>/dev/null; rm -rf "$top"' EXIT
  start_zfs_fuse "$work"
  for record in 128K 8K; do
    "$engine" sendable "$dir" "$mib" 131072 0 >/dev/null
    rm -rf "$work"/d? && truncate -s $((mib * 2 + 8192))M "$work/d0" "$work/d1"
    zfs_fuse zpool create -o cachefile=none -O compression=on -O recordsize=$record -m "$work/at" sentpeer "$work/d0"
    zfs_fuse zpool create -o cachefile=none -O compression=on -m none farpeer "$work/d1"
    "$CENOTE" cat -d "$dir" tank@one large > "$work/at/large"
    zfs_fuse zfs snapshot sentpeer@one
    printf '\nzfs-fuse, records of %s: seconds (of the command, not of its daemon)\n' $record
    for ((round = 0; round < rounds; round++)); do
      start=$(date +%s.%N)
      zfs_fuse zfs send sentpeer@one > "$top/stream"
      middle=$(date +%s.%N)
      zfs_fuse zfs receive -u farpeer/copy < "$top/stream"
      end=$(date +%s.%N)
      zfs_fuse zfs destroy -r farpeer/copy
      awk "BEGIN { printf \"send to a file %.2f, receive %.2f\n\", $middle - $start, $end - $middle }"
    done
    umount -l "$work/at"; zfs_fuse zpool destroy -f sentpeer || true; zfs_fuse zpool destroy -f farpeer || true
    rm -rf "$dir"; mkdir -p "$dir"
  done
)

for part in $parts; do
  printf '\n== %s, %s, load %s\n' "$part" "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
  case $part in
    full) full ;;
    incremental) incremental ;;
    snapshots) packages ;;
    fuse) fuse ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
printf '\n== end, %s, load %s\n' "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
