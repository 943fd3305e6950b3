#!/usr/bin/env python3
"""Has OpenZFS's engine in user space send and receive: bench/send.sh.

usage: send_peer.py send DIR POOL SNAPSHOT FROM|- compressed|expanded    writes the stream to /dev/null
       send_peer.py receive DIR POOL FILE-SYSTEM STREAM                 a full stream from a file, into a new file system
DIR has the pool's file d0. Prints a line: MB of the stream per second. The function that writes the stream is in
send_peer.c, which is compiled into DIR; needs a C compiler, and libzpool (package zfsutils-linux) of the 2.3 series.
"""
import ctypes, os, subprocess, sys, time

here = os.path.dirname(os.path.realpath(__file__)); sys.path.insert(0, os.path.join(here, "../fixtures/tools"))
from libzpool import VP, Z, export_pool, import_pool, ok

verb, dir, pool, *words = sys.argv[1:]
library = os.path.join(dir, "send_peer.so")
subprocess.check_call(["cc", "-O2", "-shared", "-fPIC", "-o", library, os.path.join(here, "send_peer.c")])
C = ctypes.CDLL(library)
import_pool(pool.encode(), [os.path.abspath(os.path.join(dir, "d0"))])
cpu, start = sum(os.times()[:2]), time.monotonic()
if verb == "send":
    snapshot, base, form = words
    null = os.open("/dev/null", os.O_WRONLY)
    amount = C.send(snapshot.encode(), None if base == "-" else base.encode(), int(form == "compressed"), null)
else:
    target, stream = words
    source = os.open(stream, os.O_RDONLY); amount = os.fstat(source).st_size
    C.receive(target.encode(), source)
    spa = VP(); ok(Z.spa_open(pool.encode(), ctypes.byref(spa), b"peer"), "spa_open")
    Z.txg_wait_synced(VP(Z.spa_get_dsl(spa)), ctypes.c_uint64(0)); Z.spa_close(spa, b"peer")
wall, cpu = time.monotonic() - start, sum(os.times()[:2]) - cpu
print(f"{verb}: {amount / wall / 1e6:.0f} MB/s, {wall:.2f} s, cpu {cpu:.2f} s", flush=True)
export_pool(pool.encode())
