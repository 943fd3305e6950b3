"""OpenZFS's engine in user space, on a pool that somebody else has made.

usage: driver.py                               ends with 0 if there is an engine here, else with 77
       driver.py FOLDER POOL replay DATASET... opens for writing, which claims all logs; replays
                                               those, tells what they held, and exports
       driver.py FOLDER POOL hash BYTES DATASET...   of the first bytes of object 1 of each
       driver.py FOLDER POOL figures           what it counts of the pool and its datasets, opened
                                               for writing, when nothing is freed any more; leaves
                                               the pool as it is then
       driver.py FOLDER POOL expand            opens for writing, which continues an expansion of a
                                               RAID-Z; exports when it has ended

The engine is libzpool of the 2.3 series. What it says to others goes to standard error. A replay
puts objects where records make them, with nothing in them, so that the engine does not leave out
what later records say of them; it writes and frees what records say.
"""

import ctypes
import hashlib
import os
import struct
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "fixtures/tools"))
try:
    from libzpool import N, NEW, U64, VP, Z, nv, ok
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

TAG = b"driver"
READ, WRITE = 1, 2                  # SPA_MODE
SKIP_MMP = U64(0x20)                # ZFS_IMPORT_SKIP_MMP
ANY_KIND = 5                        # DMU_OST_ANY
WAIT = U64(1)                       # TXG_WAIT
SETTLED = 5                         # rounds of txgs that change nothing
TO_THE_END = 2**64 - 1              # DMU_OBJECT_END
SNAPSHOTS, CHILDREN = 1, 2          # DS_FIND
HEADER, BASE, XVATTR = 32, 192, 72  # bytes: of a record, of a write, of optional attributes
MADE = {1: 104, 2: 104, 3: 104, 4: 104, 15: 104 + XVATTR, 18: 104 + XVATTR}
REMOVED, LINKED, MOVED, WRITTEN, CUT = (5, 6), 7, {8: 48, 22: 48, 23: 112}, 9, 10
ATTRIBUTES, ACL, WRITE2, XATTR = 11, 13, 20, 21
EXPANSION = 8                       # ZPOOL_WAIT_RAIDZ_EXPAND
NUMBER, LIST = 8, 19                # DATA_TYPE_UINT64, DATA_TYPE_NVLIST
for function in (N.nvlist_next_nvpair, Z.dmu_objset_zil):
    function.restype = VP
N.nvpair_name.restype = ctypes.c_char_p
CALL = ctypes.CFUNCTYPE(ctypes.c_int, VP, VP, ctypes.c_int)
NAMED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, VP)


class Handle(ctypes.Structure):
    """libpc_handle_t"""
    _fields_ = [
        ("error", ctypes.c_int), ("prints", ctypes.c_int), ("access", ctypes.c_int),
        ("active", ctypes.c_int), ("text", ctypes.c_char * 1024), ("operations", VP),
        ("library", VP)]


class Wanted(ctypes.Structure):
    """importargs_t"""
    _fields_ = [
        ("paths", VP), ("count", ctypes.c_int), ("pool", ctypes.c_char_p), ("guid", U64),
        ("cachefile", ctypes.c_char_p), ("can_be_active", ctypes.c_int), ("scan", ctypes.c_int),
        ("policy", VP), ("destroyed", ctypes.c_int), ("all", ctypes.c_int)]


def start(mode):
    # The library keeps the pointer.
    start.cache = b"/nowhere/zpool.cache"
    ctypes.c_char_p.in_dll(Z, "spa_config_path").value = start.cache
    Z.kernel_init(mode)


def open_pool(folder, pool):
    operations = ctypes.addressof(ctypes.c_char.in_dll(Z, "libzpool_config_ops"))
    handle, config = Handle(prints=1, operations=operations), VP()
    paths = (ctypes.c_char_p * 1)(folder.encode())
    wanted = Wanted(ctypes.cast(paths, VP), 1, pool, can_be_active=1, scan=1)
    found = Z.zpool_find_config(ctypes.byref(handle), pool, ctypes.byref(config),
                                ctypes.byref(wanted))
    ok(found, "zpool_find_config")
    ok(Z.spa_import(pool, config, None, SKIP_MMP), "spa_import")


def hold(dataset):
    found = VP()
    ok(Z.dmu_objset_hold(dataset, TAG, ctypes.byref(found)), f"hold {dataset}")
    return found


def texts(data):
    """Two strings, of which the second may be empty, as hexadecimal digits."""
    return " ".join(text.hex() or "-" for text in (data.split(b"\0") + [b""])[:2])


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def data_of(words, size):
    """Where the data of a write is, and how many bytes come with it: those of its own, or all of
    the block that it points at."""
    if size > BASE:
        return "inside", words[6]
    properties = words[14]
    if properties >> 39 & 1:
        return "embedded", (properties & 0x1ffffff) + 1
    block = (properties & 0xffff) + 1 << 9
    return ("block", block) if words[8] or words[9] else ("hole", max(words[6], block))


class Log:
    """A log that is replayed."""

    def __init__(self, dataset):
        self.set = VP()
        ok(Z.dmu_objset_own(dataset, ANY_KIND, 0, 0, TAG, ctypes.byref(self.set)), "own")
        self.zil = VP(Z.dmu_objset_zil(self.set))
        calls = [CALL(lambda _, record, swapped, t=t: self.call(t, record, swapped))
                 for t in range(32)]
        # True if there was something to replay.
        assert Z.zil_replay(self.set, None, (CALL * 32)(*calls)), "nothing in the log"
        Z.dmu_objset_disown(self.set, 0, TAG)

    def call(self, kind, record, swapped):
        try:
            assert not swapped
            print(self.replay(kind, record))
            return 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def replay(self, kind, record):
        head = struct.unpack("<4Q", ctypes.string_at(record, HEADER))
        size = head[1]
        data = ctypes.string_at(record, size)
        words = struct.unpack_from(f"<{min(size, BASE) // 8}Q", data)
        told = f"{kind} {head[2]} {head[3]} {words[4]}"
        change = None
        if kind in MADE:
            number, slots = words[5] & (1 << 48) - 1, (words[5] >> 56) + 1
            change = self.claim(number, slots)
            told += f" {number} {slots} {words[6]:o} {words[7]} {words[8]} {words[9]} "
            told += texts(data[MADE[kind]:])
        elif kind in REMOVED:
            told += f" {texts(data[40:])}"
        elif kind == LINKED:
            told += f" {words[5]} {texts(data[48:])}"
        elif kind in MOVED:
            told += f" {words[5]} {texts(data[MOVED[kind]:])}"
        elif kind == WRITTEN:
            (place, count), offset = data_of(words, size), words[5]
            content = sha256(ctypes.string_at(record + BASE, count))
            told += f" {offset} {words[6]} {place} {count} {content}"
            if words[6] < count:
                offset -= offset % count
            change = self.write(words[4], offset, count, record + BASE)
        elif kind == CUT:
            told += f" {words[5]} {words[6]}"
            self.free(words[4], words[5], words[6] or TO_THE_END)
        elif kind == ATTRIBUTES:
            told += " " + " ".join(map(str, words[5:10]))
        elif kind == ACL:
            told += f" {words[5]} {words[9]}"
        elif kind == WRITE2:
            told += f" {words[5]} {words[6]}"
        elif kind == XATTR:
            name, _, rest = data[48:].partition(b"\0")
            told += f" {texts(name)} {sha256(rest[:words[5]])}"
        else:
            raise ValueError(f"a record of kind {kind}")
        self.commit(*(change or (lambda tx: None, lambda tx: None)))
        return told

    def commit(self, holds, change):
        """A change, and the note that it was replayed."""
        tx = VP(Z.dmu_tx_create(self.set))
        holds(tx)
        ok(Z.dmu_tx_assign(tx, WAIT), "assign")
        change(tx)
        Z.zil_replaying(self.zil, tx)
        Z.dmu_tx_commit(tx)

    def claim(self, number, slots):
        PLAIN, ATTRIBUTES_BONUS = 19, 44
        return (lambda tx: Z.dmu_tx_hold_bonus(tx, NEW),
                lambda tx: ok(Z.dmu_object_claim_dnsize(
                    self.set, U64(number), PLAIN, 0, ATTRIBUTES_BONUS, 32, slots << 9, tx),
                    f"claim {number}"))

    def write(self, number, offset, count, data):
        return (lambda tx: Z.dmu_tx_hold_write(tx, U64(number), U64(offset), count),
                lambda tx: Z.dmu_write(
                    self.set, U64(number), U64(offset), U64(count), VP(data), tx))

    def free(self, number, offset, count):
        ok(Z.dmu_free_long_range(self.set, U64(number), U64(offset), U64(count)), "free")


def replay(folder, pool, datasets):
    start(READ | WRITE)
    open_pool(folder, pool)
    for dataset in datasets:
        print(f"log {dataset}")
        Log(dataset.encode())
    ok(Z.spa_export(pool, None, 0, 0), "spa_export")


def hash_(folder, pool, arguments):
    start(READ)
    open_pool(folder, pool)
    size, datasets = int(arguments[0]), arguments[1:]
    for dataset in datasets:
        found, data = hold(dataset.encode()), ctypes.create_string_buffer(size)
        ok(Z.dmu_read(found, U64(1), U64(0), U64(size), data, 0), "dmu_read")
        Z.dmu_objset_rele(found, TAG)
        print(dataset, sha256(data.raw))


def pairs(values):
    pair = VP(None)
    while pair := VP(N.nvlist_next_nvpair(values, pair)):
        yield N.nvpair_name(pair).decode(), pair


def number_of(pair):
    value = U64()
    if N.nvpair_type(pair) == NUMBER and N.nvpair_value_uint64(pair, ctypes.byref(value)) == 0:
        return value.value
    return None


def tell(name, values):
    """Properties that are numbers: lists with a value."""
    for property_, pair in pairs(values):
        inner = VP()
        if N.nvpair_type(pair) != LIST or N.nvpair_value_nvlist(pair, ctypes.byref(inner)):
            continue
        value = dict(pairs(inner)).get("value")
        number = number_of(value) if value else None
        if number is not None:
            print(name, property_, number)


def settled(spa):
    """Properties of the pool, once an opening has done in the background what it has to do."""
    seen = []
    while seen[-SETTLED:] != seen[-1:] * SETTLED or not seen:
        # Waits for as many txgs as freed space does.
        Z.txg_wait_synced(VP(Z.spa_get_dsl(spa)), U64(0))
        time.sleep(0.03)
        values = VP(nv({}))
        ok(Z.spa_prop_get(spa, values), "spa_prop_get")
        inner = VP()
        N.nvpair_value_nvlist(dict(pairs(values))["allocated"], ctypes.byref(inner))
        seen.append(number_of(dict(pairs(inner))["value"]))
    return values


def figures(folder, pool, _):
    # Opened for reading it does not count what the log of space maps has.
    start(READ | WRITE)
    open_pool(folder, pool)
    spa = VP()
    ok(Z.spa_open(pool, ctypes.byref(spa), TAG), "spa_open")
    values = settled(spa)
    tell("pool", values)

    def one(name, _):
        found, values = hold(name), VP(nv({}))
        Z.dmu_objset_stats(found, values)
        Z.dmu_objset_rele(found, TAG)
        tell(name.decode(), values)
        return 0

    ok(Z.dmu_objset_find(pool, NAMED(one), None, SNAPSHOTS | CHILDREN), "dmu_objset_find")


def expand(folder, pool, _):
    start(READ | WRITE)
    open_pool(folder, pool)
    waited = ctypes.c_int()
    ok(Z.spa_wait(pool, EXPANSION, ctypes.byref(waited)), "spa_wait")
    ok(Z.spa_export(pool, None, 0, 0), "spa_export")


def main():
    if len(sys.argv) == 1:
        return
    folder, pool, verb, *arguments = sys.argv[1:]
    {"replay": replay, "hash": hash_, "figures": figures, "expand": expand}[verb](folder, pool.encode(), arguments)


main()
sys.stdout.flush()
# The library's threads do not end.
os._exit(0)
