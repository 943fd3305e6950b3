#!/usr/bin/env bash
# read: verifying and reading whole pools, beside zdb and dd, in one run on the same images.
# BENCH_DIR: where the pools go (default: target/bench), BENCH_MIB: how much data (default 2048).
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
: "${CENOTE:=$here/target/release/cenote}"
dir=${BENCH_DIR:-$here/target/bench} mib=${BENCH_MIB:-2048}
command -v zdb >/dev/null || { echo "bench read: no zdb here to compare with" >&2; exit 1; }
mkdir -p "$dir"

make_pool() { # NAME LAYOUT SIZE-OF-EACH-MIB COMPRESSION
  [ -d "$dir/$1" ] || python3 "$here/fixtures/tools/ozpool.py" "$dir/$1" "$1" "$2" \
    --size "$3" --fill "$mib" --compression "$4"
}

# Prints seconds and peak memory in MiB of a command, whose output goes to $dir/out.
measure() { /usr/bin/env python3 - "$dir/out" "$@" <<'PY'
import resource, subprocess, sys, time
out = open(sys.argv[1], "wb"); start = time.monotonic()
code = subprocess.run(sys.argv[2:], stdout=out, stderr=subprocess.STDOUT).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
print(f"{time.monotonic() - start:.2f} {peak} {code}")
PY
}

make_pool lz4 d $((mib * 2)) lz4
make_pool plain d $((mib * 2)) off
make_pool z2lz4 raidz2:6 $((mib / 2)) lz4
make_pool z2plain raidz2:6 $((mib / 2)) off

printf '%-10s %-24s %8s %8s %8s\n' pool what seconds peak-MiB exit
for pool in lz4 plain z2lz4 z2plain; do
  cat "$dir/$pool"/d* > /dev/null
  read -r zdb_s zdb_m zdb_e < <(measure zdb -e -p "$dir/$pool" -bcc "$pool")
  read -r our_s our_m our_e < <(measure "$CENOTE" verify -d "$dir/$pool" "$pool")
  printf '%-10s %-24s %8s %8s %8s\n' "$pool" "zdb -bcc" "$zdb_s" "$zdb_m" "$zdb_e"
  printf '%-10s %-24s %8s %8s %8s   %s times\n' "$pool" "cenote verify" "$our_s" "$our_m" \
    "$our_e" "$(awk "BEGIN { printf \"%.1f\", $zdb_s / $our_s }")"
done
