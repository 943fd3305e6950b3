#!/usr/bin/env bash
# scan: scrubs, beside what their devices read sequentially and beside OpenZFS's scrub, in one run on
# the same kind of files, which the page cache does not hold; and the three throttles of scans on a
# modelled disk, with random reads of others beside the scrub.
# scan.sh [PART...]: files modelled (both by default).
# BENCH_DISK: a folder on a disk, BENCH_MIB: how much data (2048), BENCH_ROUNDS: how often each is
# measured, in turn (3); the best round counts. BENCH_ENGINE: a program built before.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
mkdir -p "${BENCH_DISK:=$here/target}"
dir=$(mktemp -d "$BENCH_DISK/cenote-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
engine=${BENCH_ENGINE:-${CARGO_TARGET_DIR:-$here/target}/release/engine}
parts=${*:-files modelled}

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

on_files() {
  local mib=${BENCH_MIB:-2048} rounds=${BENCH_ROUNDS:-3} layout size round found
  [ -n "${BENCH_ENGINE:-}" ] ||
    cargo build --quiet --release --manifest-path "$here/Cargo.toml" -p cenote-bench --bin engine
  printf '\n%-12s %12s %12s %12s %12s %12s\n' \
    "MB/s" sequential cenote "of it" OpenZFS "times it"
  for layout in d raidz2:6; do
    size=$((mib * 2)); [ "$layout" = d ] || size=$((mib / 2))
    found=
    for ((round = 0; round < rounds; round++)); do
      fresh
      "$engine" write "$dir" "$layout" "$size" "$mib" 131072 off on 0 >/dev/null
      leaves drop
      found+="raw $(leaves read)"$'\n'
      leaves drop
      found+="ours $("$engine" scrub "$dir" | sed -n 's/^scrub: \([0-9]*\) .*/\1/p')"$'\n'
      fresh
      found+="theirs $(python3 "$here/fixtures/tools/ozpool.py" "$dir" tank "$layout" \
        --size "$size" --fill "$mib" --compression off --scrub |
        sed -n 's/^scrub: \([0-9]*\) .*/\1/p')"$'\n'
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

# The figures are those of virtual time: the same on every machine.
modelled() {
  cargo test --quiet --manifest-path "$here/Cargo.toml" --profile checked -p cenote-engine \
    --test engine throttles::share_scrubs -- --nocapture | sed -n '/^sequential/,/^ *60  share/p'
}

for part in $parts; do
  printf '\n== %s, %s, load %s\n' "$part" "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
  case $part in
    files) on_files ;;
    modelled) modelled ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
printf '\n== end, %s, load %s\n' "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
