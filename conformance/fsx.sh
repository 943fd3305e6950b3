#!/usr/bin/env bash
# fsx: random reads, writes, maps, truncations, holes and copies of one file, against memory.
# FSX_SEEDS, FSX_OPERATIONS: how many, and how long.
. "$(dirname "$(readlink -f "$0")")/common.sh"
need_crate fsx 0.3.2
operations=${FSX_OPERATIONS:-100000} passed=0 all=0

for record in 128K 4K; do
  make_pool fsx 2048 compression=lz4 recordsize=$record
  for options in "" "-o writeback"; do
    # shellcheck disable=SC2086
    start fsx $options
    for seed in ${FSX_SEEDS:-1 2 3}; do
      all=$((all + 1))
      if "$tools/bin/fsx" -q -f "$here/conformance/fsx.toml" -N "$operations" -S "$seed" \
        -P "$work/fsx" "$work/fsx/at/file" > "$work/fsx/log-$record-$seed" 2>&1; then
        passed=$((passed + 1))
      else
        printf 'fsx: seed %s, records of %s, %s: see %s\n' "$seed" "$record" "$options" \
          "$work/fsx/log-$record-$seed" >&2
      fi
    done
    stop fsx
  done
done
row "fsx 0.3.2, $operations operations" "$passed of $all"
[ "$passed" = "$all" ]
