"""Compresses or decompresses records with OpenZFS's own code, out of libzpool.

    libzpool.py compress|decompress lzjb|gzip|zle|lz4|zstd LEVEL

Standard input: records, each its length and the room for the result (two 4-byte little-endian
numbers), then its bytes. Standard output: a length and the bytes for each; the length 0xffffffff
says that a record did not compress or was refused. Exit status 77: there is no libzpool here.
"""

import ctypes
import struct
import sys

SPA_MODE_READ = 1
REFUSED = 0xFFFFFFFF


def load():
    try:
        library = ctypes.CDLL("libzpool.so.6", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(77)
    library.kernel_init.argtypes = [ctypes.c_int]
    library.abd_get_from_buf.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.abd_get_from_buf.restype = ctypes.c_void_p
    library.abd_free.argtypes = [ctypes.c_void_p]
    library.kernel_init(SPA_MODE_READ)
    return library


def function(library, direction, form):
    found = getattr(library, f"zfs_{form}_{direction}")
    found.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    found.restype = ctypes.c_size_t if direction == "compress" else ctypes.c_int
    return found


def run(library, work, direction, record, room, level):
    source = ctypes.create_string_buffer(record, len(record))
    target = ctypes.create_string_buffer(room)
    source_abd = library.abd_get_from_buf(source, len(record))
    target_abd = library.abd_get_from_buf(target, room)
    result = work(source_abd, target_abd, len(record), room, level)
    library.abd_free(source_abd)
    library.abd_free(target_abd)
    if direction == "decompress":
        return target.raw if result == 0 else None
    return target.raw[:result] if result < len(record) else None


def main():
    direction, form, level = sys.argv[1], sys.argv[2], int(sys.argv[3])
    library = load()
    work = function(library, direction, form)
    data = sys.stdin.buffer.read()
    at = 0
    while at < len(data):
        length, room = struct.unpack_from("<II", data, at)
        at += 8
        out = run(library, work, direction, data[at:at + length], room, level)
        at += length
        if out is None:
            sys.stdout.buffer.write(struct.pack("<I", REFUSED))
        else:
            sys.stdout.buffer.write(struct.pack("<I", len(out)) + out)
    sys.stdout.buffer.flush()


main()
