"""Writes golden_blocks.tsv: where zdb finds the blocks of the files of pool g-codecs.

    golden_blocks.py FOLDER-WITH-IMAGES > golden_blocks.tsv

One line a block: data set, path (`-`: the object set itself), offset in the file, offset of its DVA,
physical size, logical size, compression, checksum function, checksum words. Offsets and sizes are
hexadecimal. The first line holds the pool's salt.
"""

import re
import subprocess
import sys

POOL = "g-codecs"
PATHS = {"/text", "/mixed"}
BLOCK = re.compile(
    r"^\s+([0-9a-f]+)\s+L0 DVA\[0\]=<0:([0-9a-f]+):[0-9a-f]+>.*?\] (\S+) (\S+) unencrypted LE "
    r".*size=([0-9a-f]+)L/([0-9a-f]+)P.* cksum=(\S+)")
ROOT = re.compile(
    r"rootbp DVA\[0\]=<0:([0-9a-f]+):[0-9a-f]+>.*?\] (\S+) (\S+) unencrypted LE "
    r".*size=([0-9a-f]+)L/([0-9a-f]+)P.* cksum=(\S+)")


def zdb(folder, *arguments):
    command = ["zdb", "-e", "-p", folder, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def row(*fields):
    print("\t".join(fields))


def main():
    folder = sys.argv[1]
    row("salt", re.search(r"checksum_salt = (\w+)", zdb(folder, "-dddd", POOL, "1")).group(1))
    datasets = sorted(set(re.findall(rf"{POOL}/[ck]-\S+", zdb(folder, "-d", POOL))))
    for dataset in datasets:
        name = dataset.removeprefix(POOL + "/")
        path = None
        for line in zdb(folder, "-ddddd", "-bbbbbb", dataset).splitlines():
            if root := ROOT.search(line):
                at, checksum, compression, lsize, psize, words = root.groups()
                row(name, "-", "0", at, psize, lsize, compression, checksum, words)
            elif line.startswith("\tpath\t"):
                path = line.split("\t")[2]
            elif re.match(r"^\s+Object\s", line):
                path = None
            elif path in PATHS and (block := BLOCK.match(line)):
                offset, at, checksum, compression, lsize, psize, words = block.groups()
                row(name, path, offset, at, psize, lsize, compression, checksum, words)


main()
