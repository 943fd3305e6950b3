#!/usr/bin/env bash
# engine: writing, beside OpenZFS's engine in user space, in one run on the same kind of files.
# BENCH_DIR: where the devices go (default: a folder on tmpfs), BENCH_MIB: how much data (512),
# BENCH_ROUNDS: how often each is measured (3); the best round counts.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
dir=${BENCH_DIR:-/dev/shm/cenote-bench} mib=${BENCH_MIB:-512} rounds=${BENCH_ROUNDS:-3}
cargo build --quiet --release --manifest-path "$here/Cargo.toml" -p cenote-bench --bin engine
engine=${CARGO_TARGET_DIR:-$here/target}/release/engine
trap 'rm -rf "$dir"' EXIT

# Prints the figure that a line beginning with $1 has in its last-but-one words.
figure() { sed -n "s/^$1: \([0-9]*\) .*/\1/p"; }

row() { # WHAT LAYOUT SIZE-OF-EACH RECORDSIZE COMPRESSION CHECKSUM OVERWRITES LINE
  local what=$1 layout=$2 size=$3 record=$4 compression=$5 checksum=$6 overwrites=$7 line=$8
  local ours=0 theirs=0 found round
  for ((round = 0; round < rounds; round++)); do
    rm -rf "$dir"; mkdir -p "$dir"
    found=$("$engine" "$dir" "$layout" "$mib" "$record" "$compression" "$checksum" \
      "$overwrites" "$size" | figure "$line")
    ours=$((found > ours ? found : ours))
    rm -rf "$dir"; mkdir -p "$dir"
    found=$(python3 "$here/fixtures/tools/ozpool.py" "$dir" tank "$layout" --size "$size" \
      --fill "$mib" --recordsize "$record" --compression "$compression" --checksum "$checksum" \
      --overwrites "$overwrites" --time | figure "$line")
    theirs=$((found > theirs ? found : theirs))
  done
  printf '%-44s %10s %10s %6s\n' "$what" "$ours" "$theirs" \
    "$(awk "BEGIN { printf \"%.1f\", $ours / $theirs }")"
}

printf '%-44s %10s %10s %6s\n' what cenote OpenZFS ratio
for layout in d raidz2:6; do
  size=$((mib * 2)); [ "$layout" = d ] || size=$((mib / 2))
  for checksum in on sha256 blake3; do
    for compression in off lz4; do
      row "$layout 128K $checksum $compression, MB/s" "$layout" "$size" 131072 "$compression" \
        "$checksum" 0 "sequential write"
    done
  done
  row "$layout 8K on off, MB/s" "$layout" "$size" 8192 off on 0 "sequential write"
  row "$layout 8K on lz4, MB/s" "$layout" "$size" 8192 lz4 on 0 "sequential write"
  row "$layout 8K overwrites, records/s" "$layout" "$size" 8192 lz4 on 50000 "random overwrite"
done
