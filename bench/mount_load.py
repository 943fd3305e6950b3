"""The work of `mount.sh`, on a folder: one part of it. Prints a line for each figure.

    mount_load.py FOLDER MIB write|read|random|synced|files"""
import json, os, subprocess, sys, time

folder, mib, part = sys.argv[1:]
work = folder + "/load"
COMPRESSIBLE = ["--buffer_compress_percentage=50", "--refill_buffers"]


def tell(name, value):
    print(f"{name}\t{value:.1f}", flush=True)


def fio(name, unit, *options):
    args = ["fio", f"--name={name}", f"--directory={work}", "--output-format=json", *options]
    text = subprocess.run(args, check=True, capture_output=True, text=True).stdout
    job = json.loads(text[text.index("{"):])["jobs"][0]
    side = max(job["read"], job["write"], key=lambda side: side["io_bytes"])
    seconds = max(job["job_runtime"] / 1e3, side["runtime"] / 1e3)
    # Writing is over when the last fsync is.
    value = side["io_bytes"] / 1e6 if unit == "MB/s" else side["total_ios"]
    tell(f"{name}, {unit}", value / seconds)


def synced(name):
    fio(name, "1/s", "--filename=synced", "--size=64m", "--bs=8k", "--rw=write", "--fsync=1",
        *timed, *COMPRESSIBLE)


def files(name, each, count=int(os.environ.get("BENCH_FILES", "10000"))):
    start = time.monotonic()
    for number in range(count):
        each(f"{work}/many/f{number}")
    if each in (create, os.unlink):
        fd = os.open(f"{work}/many", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    tell(f"{name}, 1/s", count / (time.monotonic() - start))


def create(path):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"x" * 1000)
    os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 2000)
    os.close(fd)


large = ["--filename=large", f"--size={mib}m"]
timed = [f"--runtime={os.environ.get('BENCH_SECONDS', '8')}", "--time_based"]
if part == "write":
    os.mkdir(work)
    fio("write 1M", "MB/s", *large, "--bs=1m", "--rw=write", "--end_fsync=1", *COMPRESSIBLE)
elif part == "read":
    fio("read 1M, cold", "MB/s", *large, "--bs=1m", "--rw=read")
    fio("read 1M, hot", "MB/s", *large, "--bs=1m", "--rw=read")
elif part == "random":
    fio("read 8K at random, cold", "1/s", *large, "--bs=8k", "--rw=randread", *timed)
    fio("read 8K at random of 128M, hot", "1/s", "--filename=large", "--bs=8k", "--rw=randread",
        f"--size={min(128, int(mib))}m", *timed)
    fio("write 8K at random", "1/s", *large, "--bs=8k", "--rw=randwrite", "--end_fsync=1",
        *timed, *COMPRESSIBLE)
    synced("write 8K, fsync each")
elif part == "synced":
    os.makedirs(work, exist_ok=True)
    synced("the same, pool written before")
else:
    os.mkdir(work + "/many")
    files("files of 1 KB made", create)
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("2")
    files("looked at (stat)", os.stat)
    files("opened and read", read)
    files("removed", os.unlink)
