#!/usr/bin/env bash
# fs: files, directories and reads of them without a kernel in between, beside OpenZFS's engine in
# user space where it has the same operation, and beside the device alone.
# fs.sh [PART...]: files directory cached direct ahead synced (all of them by default).
# BENCH_DIR: a folder on tmpfs, BENCH_DISK: one on a disk that takes O_DIRECT, BENCH_FILES (100000),
# BENCH_ENTRIES (1000000), BENCH_ROUNDS: how often each is measured, in turn with its peer (1); the
# best round counts. BENCH_ENGINE: a program built before.
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
mkdir -p "${BENCH_DIR:=/dev/shm}" "${BENCH_DISK:=$here/target}"
# Folders of their own, so that what else is in those is not touched.
memory=$(mktemp -d "$BENCH_DIR/cenote-bench.XXXXXX")
disk=$(mktemp -d "$BENCH_DISK/cenote-bench.XXXXXX")
rounds=${BENCH_ROUNDS:-1} files=${BENCH_FILES:-100000} entries=${BENCH_ENTRIES:-1000000}
engine=${BENCH_ENGINE:-${CARGO_TARGET_DIR:-$here/target}/release/engine}
[ -n "${BENCH_ENGINE:-}" ] ||
  cargo build --quiet --release --manifest-path "$here/Cargo.toml" -p cenote-bench --bin engine
parts=${*:-files directory cached direct ahead synced}

fresh() { rm -rf "$dir"; mkdir -p "$dir"; }
has_peer() {
  { command -v python3 && command -v cc && ldconfig -p | grep libzpool.so.6; } >/dev/null 2>&1
}
ours() { fresh; "$engine" "$1" "$dir" "${@:2}"; }
theirs() { fresh; python3 "$here/bench/fs_peer.py" "$dir" "$@"; }

# Of lines "LABEL: N unit, S s, cpu C s": SIDE, N, C and LABEL.
figures() { sed -n "s/^\([^:]*\): \([0-9]*\) .*cpu \([0-9.]*\) s\$/$1 \2 \3 \1/p"; }

# A part on both sides in turn: a line for each label, with the best of all rounds.
compare() { # PART ARGUMENTS...
  local round found=
  for ((round = 0; round < rounds; round++)); do
    found+=$(ours "$@" | tee -a "$log" | figures ours)$'\n'
    has_peer && found+=$(theirs "$@" | figures theirs)$'\n'
  done
  awk '
    NF >= 4 {
      side = $1; speed = $2; cpu = $3; label = $4
      for (i = 5; i <= NF; i++) label = label " " $i
      if (!(label in seen)) { seen[label] = 1; order[++labels] = label }
      key = side SUBSEP label
      if (speed > best[key]) best[key] = speed
      if (!(key in least) || cpu < least[key]) least[key] = cpu
    }
    END {
      for (i = 1; i <= labels; i++) {
        label = order[i]; a = "ours" SUBSEP label; b = "theirs" SUBSEP label
        ratio = best[b] ? sprintf("%.1f", best[a] / best[b]) : "-"
        less = least[a] > 0 && best[b] ? sprintf("%.1f", least[b] / least[a]) : "-"
        peer = best[b] ? best[b] : "-"
        printf "%-44s %9s %9s %6s %9s\n", "  " label ", /s", best[a], peer, ratio, less
      }
    }' <<<"$found"
}
head() { printf '\n%-44s %9s %9s %6s %9s\n' "$1" cenote OpenZFS ratio "cpu ratio"; }
more() { sed -n 's/^\(memory\|blocks\|flushes\|of\) */  \1 /p' "$log"; : >"$log"; }

log=$(mktemp)
trap 'rm -rf "$memory" "$disk" "$log"' EXIT
for part in $parts; do
  dir=$memory
  case $part in
    files) head "$files files of 1 KB, on tmpfs"; compare files "$files" ;;
    directory) head "a directory of $entries entries, on tmpfs"; compare directory "$entries" ;;
    cached) head "8K of 8K records, in memory, one thread"; compare cached 256 1000000 ;;
    synced)
      head "8K sync writes of 16 writers, on tmpfs"; compare synced 16 64000; more
      dir=$disk; head "the same on a disk"; compare synced 16 16000 ;;
    direct) dir=$disk; head "8K from a disk, O_DIRECT, depth 32"; ours direct 1024 100000 ;;
    ahead) dir=$disk; head "from end to end from a disk, O_DIRECT"; ours ahead 512 ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
  more
done
