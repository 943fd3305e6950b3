#!/usr/bin/env bash
# files: a large file read cold beside dd on the same devices, and a listing of 100 000 entries.
# BENCH_DIR: where the pools go (default: target/bench), BENCH_MIB: size of the file (default 2048).
set -euo pipefail
here=$(dirname "$(dirname "$(readlink -f "$0")")")
: "${CENOTE:=$here/target/release/cenote}"
dir=${BENCH_DIR:-$here/target/bench} mib=${BENCH_MIB:-2048} rounds=${BENCH_ROUNDS:-5}
mkdir -p "$dir"

make_pool() { # NAME LAYOUT SIZE-OF-EACH-MIB OPTIONS...
  local name=$1 layout=$2 size=$3; shift 3
  [ -d "$dir/$name" ] || python3 "$here/fixtures/tools/zplpool.py" "$dir/$name" "$name" "$layout" \
    --size "$size" "$@"
}
make_pool bigfile d $((mib + mib / 2)) --large "$mib"
make_pool bigz2 raidz2:6 $((mib / 2)) --large "$mib"
make_pool many d 1024 --files 100000

python3 - "$CENOTE" "$dir" "$mib" "$rounds" <<'PY'
import glob, os, resource, statistics, subprocess, sys, time
cenote, root, mib, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def leaves(pool): return sorted(glob.glob(f"{root}/{pool}/d*"))

def cold(pool):
    for leaf in leaves(pool):
        fd = os.open(leaf, os.O_RDONLY); os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)

def run(args):
    """Seconds and peak memory in MiB of a command."""
    start = time.monotonic()
    child = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, (args, status)
    return time.monotonic() - start, usage.ru_maxrss / 1024

print(f"{'pool':8} {'what':28} {'MB/s':>8} {'min':>8} {'max':>8} {'peak MiB':>9}")
for pool, width, data in (("bigfile", 1, 1), ("bigz2", 6, 4)):
    rates = {"dd": [], "cat": []}; peak = 0
    # dd reads as many bytes of each leaf as the file has there; cat reads the data columns only.
    share = mib // data
    for _ in range(rounds):
        cold(pool); start = time.monotonic()
        for leaf in leaves(pool)[:data]:
            run(["dd", f"if={leaf}", "of=/dev/null", "bs=1M", "skip=4", f"count={share}"])
        rates["dd"].append(mib * 1.048576 / (time.monotonic() - start))
        cold(pool); seconds, memory = run([cenote, "cat", "-d", f"{root}/{pool}", f"{pool}/fs", "/large"])
        rates["cat"].append(mib * 1.048576 / seconds); peak = max(peak, memory)
    for name, what in (("dd", f"dd bs=1M, {data} leaves in turn"), ("cat", "cenote cat /large")):
        r = rates[name]; extra = f"{peak:9.0f}   {statistics.median(r) / statistics.median(rates['dd']):.2f} of dd" if name == "cat" else ""
        print(f"{pool:8} {what:28} {statistics.median(r):8.0f} {min(r):8.0f} {max(r):8.0f} {extra}")

args = [cenote, "ls", "-R", "-d", f"{root}/many", "many/fs"]
run(args); results = [run(args) for _ in range(rounds)]
seconds = [s for s, _ in results]
print(f"many     ls -R of 100 000 entries, warm: {statistics.median(seconds):.2f} s "
      f"({min(seconds):.2f} to {max(seconds):.2f}), peak {max(m for _, m in results):.0f} MiB")
PY
