#!/usr/bin/env bash
# scale: commands on many file systems of a pool that a daemon has, and on twice and four times as
# many. Seconds of the whole command.
# BENCH_DIR: where the pool goes (default: target/bench), BENCH_DATASETS: how many at most (2000).
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
: "${CENOTE:=$here/target/release/cenote}"
mkdir -p "${BENCH_DIR:=$here/target/bench}"
top=$(mktemp -d "$BENCH_DIR/cenote-bench.XXXXXX")
export CENOTE_STATE_DIR=$top/state CENOTE_SOCKET=$top/socket
mkdir "$CENOTE_STATE_DIR"
"$CENOTE" daemon run >"$top/log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null || true; rm -rf "$top"' EXIT
until [ -S "$CENOTE_SOCKET" ]; do kill -0 "$daemon"; sleep 0.1; done
truncate -s 64G "$top/d0"
"$CENOTE" zpool create -O mountpoint=none tank "$top/d0"

timed() { # COMMAND...
  local start=$EPOCHREALTIME
  "$@" >/dev/null
  awk "BEGIN { printf \"%13.2f\", $EPOCHREALTIME - $start }"
}
create_all() { # NAME COUNT
  local number
  for ((number = 0; number < $2; number++)); do "$CENOTE" zfs create "$1/$number"; done
}
zfs() { "$CENOTE" zfs "$@"; }

printf '%-11s%13s%13s%13s%13s%13s%13s%13s\n' datasets create 'set parent' 'snapshot -r' again list \
  'destroy @' 'destroy -r'
most=${BENCH_DATASETS:-2000}
for count in $((most / 4)) $((most / 2)) "$most"; do
  zfs create "tank/$count"
  printf '%-11s' "$count"
  timed create_all "tank/$count" "$count"
  timed zfs set atime=off "tank/$count"
  timed zfs snapshot -r "tank/$count@one"
  timed zfs snapshot -r "tank/$count@two"
  timed zfs list -r -t all "tank/$count"
  timed zfs destroy -r "tank/$count@one"
  timed zfs destroy -r "tank/$count"
  printf '\n'
done
