#!/usr/bin/env bash
# engine: writing, beside OpenZFS's engine in user space, in one run on the same kind of files; and
# what needs no peer: destroying under a writer, pools larger than the machine, the allocator.
# engine.sh [PART...]: memory disk steady destroy import simulated space (all of them by default,
# which takes a quarter of an hour on two quiet cores).
# BENCH_DIR: a folder on tmpfs, BENCH_DISK: one on a disk, BENCH_MIB: how much data (memory 256,
# disk 512), BENCH_ROUNDS: how often each is measured, in turn with its peer (memory 3, disk 3,
# steady 1); the best round counts. BENCH_GB: how much is destroyed (100) or simulated (40).
# BENCH_ENGINE: a program built before.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
mkdir -p "${BENCH_DIR:=/dev/shm}" "${BENCH_DISK:=$here/target}"
# Folders of their own, so that what else is in those is not touched.
memory=$(mktemp -d "$BENCH_DIR/cenote-bench.XXXXXX")
disk=$(mktemp -d "$BENCH_DISK/cenote-bench.XXXXXX")
trap 'rm -rf "$memory" "$disk"' EXIT
engine=${BENCH_ENGINE:-${CARGO_TARGET_DIR:-$here/target}/release/engine}
[ -n "${BENCH_ENGINE:-}" ] ||
  cargo build --quiet --release --manifest-path "$here/Cargo.toml" -p cenote-bench --bin engine
parts=${*:-memory disk steady destroy import simulated space}

fresh() { rm -rf "$dir"; mkdir -p "$dir"; }
ours() { # LAYOUT SIZE FILL RECORD COMPRESSION CHECKSUM OVERWRITES
  fresh; "$engine" write "$dir" "$@"
}
theirs() {
  fresh
  python3 "$here/fixtures/tools/ozpool.py" "$dir" tank "$1" --size "$2" --fill "$3" --recordsize "$4" \
    --compression "$5" --checksum "$6" --overwrites "$7" --time
}

# Of lines "LABEL: N unit, S s, cpu C s": N and C of that with the label $1.
figures() { sed -n "s/^$1: \([0-9]*\) .* cpu \([0-9.]*\) s$/\1 \2/p"; }

# The best of several rounds, in speed and in processor time, and the ratios of both.
row() { # WHAT LABEL LAYOUT SIZE FILL RECORD COMPRESSION CHECKSUM OVERWRITES
  local what=$1 label=$2 round found=
  shift 2
  for ((round = 0; round < rounds; round++)); do
    found+="ours $(ours "$@" | figures "$label")"$'\n'
    found+="theirs $(theirs "$@" | figures "$label")"$'\n'
  done
  awk -v what="$what" '
    NF == 3 { if ($2 > speed[$1]) speed[$1] = $2; if (!($1 in cpu) || $3 < cpu[$1]) cpu[$1] = $3 }
    END {
      ratio = speed["theirs"] ? sprintf("%.1f", speed["ours"] / speed["theirs"]) : "-"
      less = cpu["ours"] ? sprintf("%.1f", cpu["theirs"] / cpu["ours"]) : "-"
      printf "%-44s %8s %8s %6s %8s\n", what, speed["ours"], speed["theirs"], ratio, less
    }' <<<"$found"
}
head() { printf '\n%-44s %8s %8s %6s %8s\n' "$1" cenote OpenZFS ratio "cpu ratio"; }

in_memory() {
  dir=$memory mib=${BENCH_MIB:-256} rounds=${BENCH_ROUNDS:-3}
  head "on tmpfs"
  local layout size checksum compression
  for layout in d raidz2:6; do
    size=$((mib * 4)); [ "$layout" = d ] || size=$mib
    for checksum in on sha256 blake3; do
      for compression in off lz4; do
        row "$layout 128K $checksum $compression, MB/s" "sequential write" \
          "$layout" "$size" "$mib" 131072 "$compression" "$checksum" 0
      done
    done
    for compression in off lz4; do
      row "$layout 8K on $compression, MB/s" "sequential write" \
        "$layout" "$size" "$mib" 8192 "$compression" on 0
    done
    row "$layout 8K overwrites, records/s" "random overwrite" \
      "$layout" "$size" "$mib" 8192 lz4 on 40000
  done
}

# All bytes that the devices were given, beside nothing but writing as many.
on_disk() {
  dir=$disk mib=${BENCH_MIB:-512} rounds=${BENCH_ROUNDS:-3}
  printf '\n%-44s %8s %8s %6s\n' "all bytes on disk" cenote raw ratio
  local layout leaves round found=
  for layout in d raidz2:6; do
    leaves=${layout#*:}; [ "$layout" = d ] && leaves=1
    for ((round = 0; round < rounds; round++)); do
      ours "$layout" $((mib * 4 / leaves + 256)) "$mib" 131072 off on 0 >"$dir.ours"
      found+="ours $(sed -n 's/^sequential write: .* MB.s, \([0-9.]*\) s.*/\1/p' "$dir.ours")"
      found+=" $(sed -n 's/^devices: \([0-9]*\) .*/\1/p' "$dir.ours")"$'\n'
      fresh
      found+="raw $("$engine" raw "$dir" "$leaves" $((mib / leaves)) |
        sed -n 's/^raw write: \([0-9]*\) .*/\1/p')"$'\n'
    done
    rm -f "$dir.ours"
    awk -v layout="$layout" '
      $1 == "ours" && $2 { speed = $3 / 1e6 / $2; if (speed > ours) ours = speed }
      $1 == "raw" && $2 > raw { raw = $2 }
      END {
        printf "%-44s %8.0f %8.0f %6.2f\n", layout " physical MB/s", ours, raw,
          raw ? ours / raw : 0
      }' <<<"$found"
    found=
  done
}

# 40 000 overwrites at random places of an object that fills a part of the pool.
steady() {
  dir=$disk rounds=${BENCH_ROUNDS:-1}
  head "steady 8K overwrites, on disk, pool of 2 GiB"
  local percent fill
  for percent in 25 50 75; do
    fill=$((2048 * percent / 100))
    row "$percent % full, records/s" "random overwrite" d 2048 "$fill" 8192 off on 40000
  done
}

for part in $parts; do
  printf '\n== %s, %s, load %s\n' "$part" "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
  case $part in
    memory) in_memory ;;
    disk) on_disk ;;
    steady) steady ;;
    destroy) "$engine" destroy "${BENCH_GB:-100}" 1000000 ;;
    import) dir=$memory; fresh; "$engine" scatter "$dir" 16 1000000; "$engine" import "$dir" ;;
    simulated) "$engine" simulated "${BENCH_GB:-40}" ;;
    space) for count in 20000 100000; do "$engine" space "$count"; done ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
printf '\n== end, %s, load %s\n' "$(date -u +%T)" "$(cut -d' ' -f1 /proc/loadavg)"
