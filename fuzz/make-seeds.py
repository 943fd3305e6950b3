#!/usr/bin/env python3
"""Cut the fuzz targets' first inputs out of pools that OpenZFS made, with zdb as the reader.

usage: make-seeds.py DIR POOL     DIR holds dN.img of a pool of one disk or mirrored disks
       make-seeds.py --codecs DIR POOL    stored blocks of every compression (DIR: g-codecs)
       make-seeds.py --streams DIR NAME...    the first records of streams, DIR/NAME, and the
                                              payload of the first BEGIN
       make-seeds.py --token TOKEN NAME    a resume token
       make-seeds.py --made       words in the shape of structures that the pools have few of
Writes fuzz/seeds/TARGET/POOL-WHAT; keeps at most a few of each kind, 16 KiB each.
"""
import os, re, struct, subprocess, sys, collections

mode = sys.argv.pop(1) if sys.argv[1].startswith("--") else ""
folder, pool = (sys.argv[1:] + ["", "made"])[:2] if mode != "--made" else ("", "made")
here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")
counts = collections.Counter()

def zdb(*words, text=True):
    run = subprocess.run(["zdb", "-e", "-p", folder, *words], capture_output=True)
    return run.stdout.decode("utf-8", "replace") if text else run.stdout

def keep(target, what, data, limit=3):
    if not data.strip(b"\0") or counts[target] >= limit: return
    counts[target] += 1
    os.makedirs(f"{here}/{target}", exist_ok=True)
    with open(f"{here}/{target}/{pool}-{what}", "wb") as f: f.write(data[:16384])

BLOCK = re.compile(r"([0-9a-f]+):([0-9a-f]+):[0-9a-f]+ .*?([0-9a-f]+)L/([0-9a-f]+)P .*B=")

def short_records(data):
    """The records of the first substream, without those that have long payloads."""
    at, kinds = 0, collections.Counter()
    while at < len(data):
        kind, in_begin = struct.unpack_from("<II", data, at)
        word = lambda offset: struct.unpack_from("<Q", data, at + offset)[0]
        half = lambda offset: struct.unpack_from("<I", data, at + offset)[0]
        size = {0: in_begin, 1: half(28), 3: word(96) if data[at + 50] else word(32),
                7: word(16), 8: half(52)}.get(kind, 0)
        size = (size + 7) // 8 * 8
        kinds[kind] += 1
        if size <= 2048 and kinds[kind] <= 6 or kind in (0, 5): yield data[at:at + 312 + size]
        if kind == 5: return
        at += 312 + size

if mode == "--streams":
    for name in sys.argv[2:]:
        pool = "g-send"
        data = open(f"{folder}/{name}", "rb").read()
        keep("stream", name, data[:4096], limit=8)
        keep("receive", name, b"".join(short_records(data)), limit=8)
        keep("token", name, data[312:312 + struct.unpack("<I", data[4:8])[0]], limit=8)
    sys.exit()

if mode == "--token":
    pool = "g-send"
    keep("token", sys.argv[2], sys.argv[1].encode()); sys.exit()

def block(line):
    """The decompressed bytes of the first copy in a line of `zdb -dddddd`."""
    m = BLOCK.search(line)
    if not m or "EMBEDDED" in line or "gang" in line: return b""
    vdev, offset, lsize, psize = m.groups()
    flags = "r" if lsize == psize else "dr"
    data = zdb("-R", pool, f"{vdev}:{offset}:{lsize}/{psize}:{flags}", text=False)
    return data if len(data) == int(lsize, 16) else b""

def objects(dataset):
    """(number, type, bonus type, lines of blocks) of every object."""
    for part in re.split(r"\n\s+Object +lvl.*\n", zdb("-dddddd", dataset))[1:]:
        lines = part.split("\n"); fields = lines[0].split()
        kind = re.sub(r"\(.*", "", " ".join(fields[8:])).strip()
        yield int(fields[0]), kind, part, [l for l in lines if BLOCK.search(l)]

def stored(line):
    """The stored bytes of a block, from the first side of a mirror."""
    _, offset, lsize, psize = BLOCK.search(line).groups()
    with open(f"{folder}/d0.img", "rb") as f: f.seek(int(offset, 16) + (4 << 20)); return f.read(int(psize, 16))

if mode == "--codecs":
    for dataset, target in [("c-lzjb", "lzjb"), ("c-gzip-9", "gzip"), ("c-zle", "zle"), ("c-lz4", "lz4"), ("c-zstd-19", "zstd")]:
        for number, kind, text, lines in objects(f"{pool}/{dataset}"):
            for line in [l for l in lines if " L0 " in l][:1]:
                m = BLOCK.search(line)
                if kind == "ZFS plain file" and m[3] != m[4] and "EMBEDDED" not in line and int(m[4], 16) <= 32768: keep(target, f"{number}", stored(line))
        keep("checksum", target, bytes(range(256)) * 2)
    print(dict(counts)); sys.exit()

if mode == "--made":
    W = lambda *words: b"".join(struct.pack("<Q", w & (1 << 64) - 1) for w in words)
    root = os.path.dirname(here)
    keep("nvlist_native", "native", bytes.fromhex("".join(open(f"{root}/../crates/cenote-ondisk/src/nvlist/native.hex").read().split())))
    keep("acl", "v1", b"".join(struct.pack("<HHI", t, f, m) for t, f, m in [(0, 0x1000, 0x1601bf), (0, 0x2040, 0x120088), (0, 0x4000, 0x1200a9)]) + struct.pack("<HHIQ", 1, 0x40, 1, 1000))
    keep("acl", "posix", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in [(1, 6, 2**32 - 1), (2, 7, 1000), (4, 4, 2**32 - 1), (16, 6, 2**32 - 1), (32, 0, 2**32 - 1)]))
    keep("bptree", "header", W(3, 5, 1 << 20, 1 << 19, 1 << 21)); keep("bptree", "entry", bytes(128) + W(54, 8, 1, 7) + bytes(64))
    keep("brt", "phys", W(0, 4, 4, 1 << 24, 1 << 23, 3, 1, 1)); keep("brt", "counters", struct.pack("<8H", *range(8)))
    keep("ddt", "key", W(1, 2, 3, 4, 0x000f00ff00ff)); keep("ddt", "flat", W(1, 2, 3, 4, 5, 6, 7, 8, 9)); keep("ddt", "histogram", W(*range(512)))
    keep("ddt_log", "header", W(1, 0, 1 << 12, 9, 0, 0, 0, 0, 0)); keep("ddt_log", "record", W(0x0000_0090_0000_0001, *range(17)) * 3)
    keep("errlog", "plain", b"36:2a:0:1f"); keep("errlog", "head", b"2a:0:1f:1234")
    keep("indirect", "mapping", W(*sum(([1 << 63 | i << 20, 0x100 | 1 << 32, i << 11] for i in range(8)), []))); keep("indirect", "phys", W(8, 1 << 20, 3, 4))
    keep("redaction", "header", W(2, 0, 1, 5, 3, 77, 78)); keep("redaction", "entry", W(1 << 47 | 3, 4, 1 << 16, 0))
    keep("scan", "words", W(1, 2, 1700000000, 0, 10, 20, 1 << 30, 1 << 30, *range(16))); keep("scan", "scrub", W(1, 1, *range(10)))
    keep("zil", "header", W(5, 3, 1) + bytes(128) + W(4, 1)); keep("zil", "records", W(9, 192 + 64, 7, 1, 34, 0, 64, 0, *[0] * 24) + W(1, 64, 7, 2, 34, 0, 0, 0))
    keep("history", "records", b"".join(struct.pack("<Q", len(r)) + r for r in [bytes.fromhex("".join(open(f"{root}/../crates/cenote-ondisk/src/nvlist/xdr.hex").read().split()))] * 2))
    keep("zle", "runs", (b"\x03abcd" + b"\xff\x41\x3f" + bytes(range(64))) * 9)
    keep("history", "header", W(12664, 150994, 12664, 26376, 0)); sys.exit()

label = open(f"{folder}/d0.img", "rb").read(1 << 19)
keep("nvlist_xdr", "label", label[16384:131072].rstrip(b"\0") + bytes(8))
keep("vdev_config", "label0", label[16384:131072].rstrip(b"\0") + bytes(8)); keep("label", "label0", label[16384:16384 + 112 * 1024].rstrip(b"\0") + bytes(8))
for slot in range(128):
    u = label[131072 + slot * 1024:131072 + (slot + 1) * 1024]
    if struct.unpack("<Q", u[:8])[0] == 0xbab10c: keep("uberblock", f"slot{slot}", u); keep("blkptr", f"rootbp{slot}", u[40:168])
m = re.search(r"rootbp DVA\[0\]=<([0-9a-f]+:[0-9a-f]+):.*size=([0-9a-f]+)L/([0-9a-f]+)P", zdb("-dddd", pool, "1"))
keep("objset", "mos", zdb("-R", pool, f"{m[1]}:{m[2]}/{m[3]}:dr", text=False))

BONUS = {12: "dsl", 16: "dsl", 14: "bpobj", 7: "spacemap", 44: "sa", 17: "znode", 4: "bpobj", 10: "history", 51: "bpobj"}

def dnodes(data, what):
    for slot in range(0, len(data) - 511, 512):
        d = data[slot:slot + 512]
        if not 0 < d[0] < 240 or not 1 <= d[3] <= 3: continue
        keep("dnode", f"{what}-{slot:x}", d, 6)
        used = struct.unpack("<H", d[10:12])[0]; start = 64 + 128 * d[3]
        if used and d[4] in BONUS: keep(BONUS[d[4]], f"bonus{d[4]}-{what}-{slot:x}", d[start:start + used], 6)

KINDS = {"SPA space map": "spacemap", "SPA history": "history", "DSL deadlist": "bpobj", "bpobj": "bpobj", "packed nvlist": "nvlist_xdr", "SPA error log": "errlog"}
datasets = [pool] + [l.split("\t")[0] for l in subprocess.run(["zstd", "-dcq", f"{os.path.dirname(here)}/../fixtures/{pool}/zfs-list.tsv.zst"], capture_output=True, text=True).stdout.split("\n") if "\tfilesystem\t" in l][1:3]
for dataset in datasets:
    name = dataset.replace("/", "-")
    for line in re.findall(r".* L0 .*", zdb("-dddddd", dataset, "0")): dnodes(block(line), f"{name}-{counts['dnode']}")
    for number, kind, text, lines in objects(dataset):
        if kind in KINDS and counts[KINDS[kind]] < 6:
            for line in lines[:2]: keep(KINDS[kind], f"{name}-{number}", block(line), 6)
        elif counts["zap_micro"] < 3 or counts["zap_fat"] < 3 or counts["zap_leaf"] < 3:
            if not re.search("ZAP|directory|props|master node|SA attr|zap", kind): continue
            for line in [l for l in lines if " L0 " in l][:3]:
                data = block(line); word = struct.unpack("<Q", data[:8])[0] if data else 0
                target = {1 << 63 | 3: "zap_micro", 1 << 63 | 1: "zap_fat", 1 << 63: "zap_leaf"}.get(word)
                if target: keep(target, f"{name}-{number}", data)
                elif target is None: pass
print(pool, dict(counts))
