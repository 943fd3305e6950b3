#!/usr/bin/env bash
# scan: scrubs, beside what their devices read sequentially and beside OpenZFS's scrub, in one run on
# the same kind of files, which the page cache does not hold; both scrubs of one pool that is 90 %
# full and fragmented, which cenote fills (OpenZFS's engine in user space stands still there);
# resilvers, rebuilds, removals and expansions, beside what the files read, write and copy
# sequentially; and the three throttles of scans with random reads of others beside the scrub, on a
# file and on a modelled disk.
# scan.sh [PART...]: files devices throttles modelled (these by default) fragmented memory.
# BENCH_DISK: a folder on a disk, BENCH_MIB: how much data (2048; throttles twice as much),
# BENCH_ROUNDS: how often each is measured, in turn (3); the best round counts. BENCH_SECONDS: how
# long each throttle is measured (10). BENCH_GIB: data on the simulated disk of memory (64).
# BENCH_ENGINE: a program built before.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
mkdir -p "${BENCH_DISK:=$here/target}"
dir=$(mktemp -d "$BENCH_DISK/cenote-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
engine=${BENCH_ENGINE:-${CARGO_TARGET_DIR:-$here/target}/release/engine}
parts=${*:-files devices throttles modelled}
mib=${BENCH_MIB:-2048} rounds=${BENCH_ROUNDS:-3}
case " $parts " in
  *" files "* | *" fragmented "* | *" devices "* | *" throttles "* | *" memory "*)
    [ -n "${BENCH_ENGINE:-}" ] ||
      cargo build --quiet --release --manifest-path "$here/Cargo.toml" -p cenote-bench --bin engine ;;
esac

fresh() { rm -rf "$dir"; mkdir -p "$dir"; }

# Reads or drops what the files d* hold: MB/s of all of them at once.
leaves() { # read|drop
  python3 - "$1" "$dir"/d* <<'PY'
import os, sys, threading, time
verb, paths = sys.argv[1], sys.argv[2:]
total = [0] * len(paths)
def extents(fd):
    at, size = 0, os.fstat(fd).st_size
    while at < size:
        try: start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError: return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at
def work(number):
    fd = os.open(paths[number], os.O_RDONLY)
    if verb == "drop":
        os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); return
    buffer = bytearray(1 << 20)
    for start, end in extents(fd):
        while start < end:
            read = os.preadv(fd, [memoryview(buffer)[:min(1 << 20, end - start)]], start)
            start += read; total[number] += read
start = time.monotonic()
threads = [threading.Thread(target=work, args=(number,)) for number in range(len(paths))]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
if verb == "read": print(f"{sum(total) / (time.monotonic() - start) / 1e6:.0f}")
PY
}

# Of lines "LABEL: N unit, ...": N of that with the label $1.
rate() { sed -n "s/^$1: \([0-9]*\) .*/\1/p"; }

on_files() {
  local layout size round found
  printf '\n%-12s %12s %12s %12s %12s %12s\n' \
    "MB/s" sequential cenote "of it" OpenZFS "times it"
  for layout in d raidz2:6; do
    size=$((mib * 2)); [ "$layout" = d ] || size=$((mib / 2))
    found=
    for ((round = 0; round < rounds; round++)); do
      fresh
      "$engine" write "$dir" "$layout" "$size" "$mib" 131072 off on 0 >/dev/null
      # Before and after: the host of a virtual machine reads a second time faster.
      leaves drop
      found+="raw $(leaves read)"$'\n'
      leaves drop
      found+="ours $("$engine" scrub "$dir" | rate scrub)"$'\n'
      leaves drop
      found+="raw $(leaves read)"$'\n'
      fresh
      found+="theirs $(python3 "$here/fixtures/tools/ozpool.py" "$dir" tank "$layout" \
        --size "$size" --fill "$mib" --compression off --scrub | rate scrub)"$'\n'
    done
    awk -v layout="$layout" '
      NF == 2 && $2 > best[$1] { best[$1] = $2 }
      END {
        printf "%-12s %12d %12d %12s %12d %12s\n", layout, best["raw"], best["ours"],
          best["raw"] ? sprintf("%.2f", best["ours"] / best["raw"]) : "-", best["theirs"],
          best["theirs"] ? sprintf("%.1f", best["ours"] / best["theirs"]) : "-"
      }' <<<"$found"
  done
}

# One pool, which OpenZFS fills to 90 % with records of 8K, overwrites at random a quarter as many times
# as it has records, and scrubs; then cenote scrubs the same files. OpenZFS's engine in user space may
# stand still in so full a pool: it has a quarter of an hour.
fragmented() {
  local layout size fill round found
  printf '\n%-12s %12s %12s %12s\n' "MB/s, 90 %" cenote OpenZFS "times it"
  for layout in d raidz2:6; do
    # A record of 8K has 8K on a disk, and 24K on a raidz2. A pool keeps 128 MiB for itself.
    size=$mib fill=$((mib * 85 / 100))
    [ "$layout" = d ] || size=$((mib / 4)) fill=$((mib * 80 / 200))
    fresh
    "$engine" write "$dir" "$layout" "$size" "$fill" 8192 off on $((fill * 128)) >/dev/null
    found=
    for ((round = 0; round < rounds; round++)); do
      found+="theirs $(python3 "$here/fixtures/tools/ozscrub.py" tank "$dir"/d* | rate scrub)"$'\n'
      leaves drop
      found+="ours $("$engine" scrub "$dir" | rate scrub)"$'\n'
    done
    awk -v layout="$layout" '
      NF == 2 && $2 > best[$1] { best[$1] = $2 }
      END {
        printf "%-12s %12d %12d %12s\n", layout, best["ours"], best["theirs"],
          best["theirs"] ? sprintf("%.1f", best["ours"] / best["theirs"]) : "-"
      }' <<<"$found"
  done
}

# Ways in which a new file gets its data, beside reading the files of the pool, writing a file of as
# many bytes as one of them has, and copying that.
devices() {
  local way layout size leaves round found
  printf '\n%-24s %8s %8s %8s %8s %10s\n' "MB/s to the new file" read write copy cenote "of slower"
  while read -r way layout leaves; do
    # Each file of the pool has $mib of data.
    size=$((mib * 2)) found=
    for ((round = 0; round < rounds; round++)); do
      fresh
      "$engine" write "$dir" "$layout" "$size" $((mib * leaves)) 131072 off on 0 >/dev/null
      leaves drop
      found+="read $(leaves read)"$'\n'
      found+="write $("$engine" raw "$dir" 1 "$mib" | rate 'raw write')"$'\n'
      leaves drop
      found+="copy $(copy "$dir/d0" "$dir/r0")"$'\n'
      rm -f "$dir/r0"
      leaves drop
      found+="read $(leaves read)"$'\n'
      leaves drop
      found+="ours $("$engine" resync "$dir" "$way" | rate "$way")"$'\n'
    done
    awk -v what="$way, $layout" '
      NF == 2 && $2 > best[$1] { best[$1] = $2 }
      END {
        slower = best["read"] < best["write"] ? best["read"] : best["write"]
        printf "%-24s %8d %8d %8d %8d %10s\n", what, best["read"], best["write"], best["copy"],
          best["ours"], slower ? sprintf("%.2f", best["ours"] / slower) : "-"
      }' <<<"$found"
  done <<'END'
attach d 1
rebuild d 1
replace raidz2:6 4
remove d 1
expand raidz2:6 4
END
}

# Copies the data of a file, and makes it durable: MB/s.
copy() { # FROM TO
  python3 - "$@" <<'PY'
import os, sys, time
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
size, at, copied, begun = os.fstat(source).st_size, 0, 0, time.monotonic()
os.ftruncate(target, size)
while at < size:
    try: start = os.lseek(source, at, os.SEEK_DATA)
    except OSError: break
    at = os.lseek(source, start, os.SEEK_HOLE)
    while start < at:
        data = os.pread(source, min(1 << 20, at - start), start)
        start += os.pwrite(target, data, start); copied += len(data)
os.fdatasync(target)
print(f"{copied / (time.monotonic() - begun) / 1e6:.0f}")
PY
}

# Scrubs beside readers of 8K, which read from the disk.
throttles() {
  local readers
  fresh
  # So much that a scrub takes some seconds.
  "$engine" write "$dir" d $((mib * 3)) $((mib * 2)) 131072 off on 0 >/dev/null
  leaves drop
  for readers in 0 1 8; do
    "$engine" -o cenote_direct_io=1 throttle "$dir" "${BENCH_SECONDS:-10}" "$readers"
  done
}

# The figures are those of virtual time: the same on every machine.
modelled() {
  cargo test --quiet --manifest-path "$here/Cargo.toml" --profile checked -p cenote-engine \
    --test engine throttles::share_scrubs -- --nocapture | sed -n '/^sequential/,/^ *60  share/p'
}

for part in $parts; do
  printf '\n== %s, %s, load %s\n' "$part" "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
  case $part in
    files) on_files ;;
    fragmented) fragmented ;;
    devices) devices ;;
    throttles) throttles ;;
    modelled) modelled ;;
    memory) "$engine" scrubbed "${BENCH_GIB:-64}" ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
printf '\n== end, %s, load %s\n' "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
