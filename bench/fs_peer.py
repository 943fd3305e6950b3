#!/usr/bin/env python3
"""Has OpenZFS's engine do what `engine files`, `directory`, `cached` and `synced` do: bench/fs.sh.

usage: fs_peer.py DIR files COUNT | directory COUNT | cached MIB READS | synced WRITERS COUNT
Lines are those of the engine program. The loops are in fs_peer.c, which is compiled into DIR; needs a C compiler, and libzpool
(package zfsutils-linux) of the 2.3 series. There is no POSIX layer in it: no rights, no layouts of attributes, no accounts,
and log records of the sync writes only.
"""
import ctypes, os, random, subprocess, sys, time

here = os.path.dirname(os.path.realpath(__file__)); sys.path.insert(0, os.path.join(here, "../fixtures/tools"))
from libzpool import NEW, U64, VP, Z, Pool, ok

dir, part, *numbers = sys.argv[1:]; numbers = [int(n) for n in numbers]
features = """async_destroy empty_bpobj lz4_compress spacemap_histogram enabled_txg hole_birth extensible_dataset embedded_data
bookmarks filesystem_limits large_blocks large_dnode userobj_accounting project_quota spacemap_v2 allocation_classes log_spacemap""".split()
os.makedirs(dir, exist_ok=True); library = os.path.join(dir, "peer.so")
subprocess.check_call(["cc", "-O2", "-shared", "-fPIC", "-o", library, os.path.join(here, "fs_peer.c")])
sizes = {"files": 4096, "directory": 8192, "cached": 1024 + numbers[0] * 3 // 2, "synced": 4096}
pool = Pool(dir, "tank", "d", sizes[part], 12, features, 2); pool.prop("compression", "off"); pool.own()
C = ctypes.CDLL(library)
for f in (C.make_directory, C.list): f.restype = U64
spa = VP(); ok(Z.spa_open(pool.name, ctypes.byref(spa), b"peer"), "spa_open")
def synced(): Z.txg_wait_synced(VP(Z.spa_get_dsl(spa)), U64(0))

def timed(label, unit, amount, *work):
    wall, cpu = time.time(), sum(os.times()[:2])
    for step in work: step()
    wall, cpu = time.time() - wall, sum(os.times()[:2]) - cpu
    print(f"{label}: {amount / wall:.0f} {unit}, {wall:.2f} s, cpu {cpu:.2f} s", flush=True)

def file(record, mib):
    tx = pool.tx(lambda t: Z.dmu_tx_hold_bonus(t, NEW))
    obj = Z.dmu_object_alloc(pool.set, 19, record, 17, 264, tx); Z.dmu_tx_commit(tx)
    chunks = [random.randbytes(1 << 20) for _ in range(16)]
    for i in range(mib): pool.write(obj, i << 20, chunks[i % 16])
    return obj

S, N = pool.set, lambda *numbers: [U64(n) for n in numbers]
if part in ("files", "directory"):
    count, per, size = numbers[0], 10_000 if part == "files" else numbers[0], 1000 if part == "files" else 0
    unit = "files/s" if size else "entries/s"
    dirs = [(U64(C.make_directory(S)), first, min(first + per, count)) for first in range(0, count, per)]
    def each(work): return lambda: [work(*d) for d in dirs]
    if not size:
        step = count // 10
        def parts():
            for i in range(10): timed(f"part {i}", unit, step, lambda: C.create(S, dirs[0][0], *N(i * step, (i + 1) * step, 0)))
        timed("create", unit, count, parts, synced)
        timed("list", unit, count, lambda: C.list(S, dirs[0][0]) == count or sys.exit("not all are listed"))
        timed("lookup", unit, count, lambda: C.look(S, dirs[0][0], *N(0, count, 7919, 0)))
    else:
        timed("create", unit, count, each(lambda d, first, end: C.create(S, d, *N(first, end, size))), synced)
        timed("stat", unit, count, each(lambda d, first, end: C.look(S, d, *N(first, end, 1, 0))))
        timed("read", unit, count, each(lambda d, first, end: C.look(S, d, *N(first, end, 1, size))))
    timed("remove" if size else "unlink", unit, count, each(lambda d, first, end: C.destroy(S, d, *N(first, end))), synced)
elif part == "cached":
    obj, records = file(8192, numbers[0]), numbers[0] * 128
    synced(); C.read_random(S, *N(obj, records, 8192, 2 * records))
    timed("random read", "reads/s", numbers[1], lambda: C.read_random(S, *N(obj, records, 8192, numbers[1])))
elif part == "synced":
    writers, count = numbers
    objects = (U64 * writers)(*[file(8192, 8) for _ in range(writers)]); synced()
    timed("durable write", "writes/s", count, lambda: C.write_group(S, objects, *N(writers, 8192, 1024, count // writers), random.randbytes(8192)))
Z.spa_close(spa, b"peer")
pool.export()
