#!/usr/bin/env bash
# page.sh: opens the daemon's page in a headless Chromium, and checks what it shows.
#
#   CENOTE    the program (target/checked/cenote)
#   CHROMIUM  the browser (chromium)
#   PORT      a free port of this machine (19134)
#   SHOTS     a folder for screenshots, light and dark (none are taken)
#
# Needs FUSE for the load on the pool. Exit status 0: the page shows the pool, its metaslabs and its
# status, and nothing failed.
set -euo pipefail
cenote=${CENOTE:-target/checked/cenote} browser=${CHROMIUM:-chromium} port=${PORT:-19134}
command -v "$browser" >/dev/null || { echo "page.sh: no $browser"; exit 2; }
work=$(mktemp -d)
export CENOTE_STATE_DIR=$work/state CENOTE_METRICS_LISTEN=127.0.0.1:$port
mkdir -p "$work/state/lab" "$work/pool"
finish() {
  "$cenote" daemon stop >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

truncate -s 512M "$work"/pool/{a,b}
"$cenote" zpool create -m "$work/mount" page mirror "$work/pool/a" "$work/pool/b"
"$cenote" lab run pads --small --out "$work/state/lab" >/dev/null || true
(while :; do dd if=/dev/urandom of="$work/mount/file" bs=1M count=32 conv=fsync 2>/dev/null; done) &
load=$!
trap 'kill $load 2>/dev/null; wait $load 2>/dev/null; finish' EXIT

quiet=(--headless --no-sandbox --disable-gpu --disable-quic --no-first-run
  --disable-background-networking --disable-component-update --disable-sync
  "--user-data-dir=$work/browser" --virtual-time-budget=20000 --enable-logging=stderr)
dom=$("$browser" "${quiet[@]}" --dump-dom "http://127.0.0.1:$port/" 2>"$work/log")
status=0
shows() {
  if grep -q "$1" <<<"$dom"; then echo "ok      $2"; else echo "FAILED  $2"; status=1; fi
}
shows '<b>page</b>' 'facts of the pool'
shows 'mirror-0 (normal)' 'metaslabs of the vdev'
shows 'No known data errors' 'zpool status'
shows 'value="dataset page"' 'latencies of a dataset'
shows 'class="uplot' 'charts of rates'
shows 'lab/pads.svg' 'an experiment of the laboratory'
if grep -q 'No answer' <<<"$dom"; then echo 'FAILED  every request is answered'; status=1; fi
if grep -i 'CONSOLE' "$work/log"; then echo 'FAILED  nothing on the console'; status=1; fi
if [ -n "${SHOTS:-}" ]; then
  mkdir -p "$SHOTS"
  "$browser" "${quiet[@]}" --window-size=1400,1300 --screenshot="$SHOTS/light.png" \
    "http://127.0.0.1:$port/" 2>/dev/null
  "$browser" "${quiet[@]}" --window-size=1400,1300 --force-dark-mode \
    --blink-settings=preferredColorScheme=0 --screenshot="$SHOTS/dark.png" \
    "http://127.0.0.1:$port/" 2>/dev/null
fi
exit $status
