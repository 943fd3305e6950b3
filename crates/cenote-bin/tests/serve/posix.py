"""What programs see of a file system, as lines `check: answer`, for one to be compared with another.

Usage: posix.py FOLDER [CHECK...]. Each check works in a folder of its own below FOLDER. An answer
holds nothing that depends on the time, on numbers of inodes, or on the size of a block.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import stat
import struct
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
CHECKS = []
MIB = 1 << 20
IMMUTABLE, APPEND = 0x10, 0x20
USER, OTHER = 1000, 1001


def check(function):
    CHECKS.append(function)
    return function


def told(action, *arguments, **options):
    """The value of a call, or the name of its error."""
    try:
        value = action(*arguments, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    except (BufferError, ValueError) as error:
        return type(error).__name__
    return "ok" if value is None else value


def opened(path, flags, mode=0o644):
    """Opens and closes."""
    os.close(os.open(path, flags, mode))


def write(path, data=b"", flags=0):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        if data:
            os.write(fd, data)
    finally:
        os.close(fd)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def as_user(uid, action, *arguments, groups=(), umask=0o022):
    """What another user is told."""
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups(list(groups))
        os.setgid(uid)
        os.setuid(uid)
        os.umask(umask)
        os.write(target, str(told(action, *arguments)).encode())
        os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as said:
        answer = said.read().decode()
    os.waitpid(pid, 0)
    return answer


def set_flags(path, flags):
    """Sets immutable, append only and no dump as they are to be."""
    fd = os.open(path, os.O_RDONLY)
    try:
        (before,) = struct.unpack("l", fcntl.ioctl(fd, 0x80086601, bytes(8)))
        fcntl.ioctl(fd, 0x40086602, struct.pack("l", before & ~0x70 | flags))
    finally:
        os.close(fd)


def fallocate(fd, mode, offset, length):
    arguments = (fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    if LIBC.fallocate(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def has(program):
    return any(os.access(os.path.join(at, program), os.X_OK) for at in os.environ["PATH"].split(":"))


def in_child(action):
    """Runs an action in a process that stays until it is let go."""
    ready, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        kept = action()
        os.write(tell, b"x")
        os.read(wait, 1)
        del kept
        os._exit(0)
    os.close(tell)
    os.close(wait)
    os.read(ready, 1)
    os.close(ready)

    def let_go():
        os.close(go)
        os.waitpid(pid, 0)

    return let_go


def runs(path):
    """The bytes that are data, as ranges in units of 1 MiB."""
    fd = os.open(path, os.O_RDONLY)
    size, at, found = os.fstat(fd).st_size, 0, []
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start // MIB, (at + MIB - 1) // MIB))
    os.close(fd)
    return found


def settled(path):
    """The same, when the handles that were closed are released."""
    # Closing a file does not wait for that.
    for _ in range(100):
        found = runs(path)
        if found != [(0, (os.stat(path).st_size + MIB - 1) // MIB)]:
            break
        time.sleep(0.01)
    return found


@check
def mapped_pages_are_copied(at):
    size, places = 8 * MIB, (0, 3 * MIB + 77, 6 * MIB, 8 * MIB - 5)
    write("file")
    os.truncate("file", size)

    def map_it():
        with open("file", "r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        for place in places:
            mapping[place : place + 5] = b"dirty"
        return mapping

    let_go = in_child(map_it)
    wanted = bytearray(size)
    for place in places:
        wanted[place : place + 5] = b"dirty"
    for name, command in [
        ("cp", "cp --sparse=auto file copy"),
        ("cp always", "cp --sparse=always file copy"),
        ("tar", "tar -cSf - file | tar -xOf - file > copy"),
        ("rsync", "rsync -S file copy"),
        ("dd", "dd if=file of=copy conv=sparse status=none"),
    ]:
        if command.startswith("rsync") and not has("rsync"):
            continue
        subprocess.run(command, shell=True, check=True)
        yield name, read("copy") == wanted
        os.unlink("copy")
    with open("file", "rb") as source, open("copy", "wb") as target:
        yield "range", os.copy_file_range(source.fileno(), target.fileno(), size)
    yield "copied range", read("copy") == wanted
    yield "first data", os.stat("file").st_size - size, runs("file")[0][0]
    let_go()
    yield "afterwards", read("file") == wanted


@check
def mapped_bytes_are_those_of_read_and_write(at):
    write("file", b"a" * 8192)
    with open("file", "r+b", buffering=0) as file:
        mapping = mmap.mmap(file.fileno(), 0)
        mapping[10:15] = b"store"
        yield "read", os.pread(file.fileno(), 7, 9)
        os.pwrite(file.fileno(), b"write", 20)
        yield "load", mapping[19:26]
        let_go = in_child(lambda: [m := mmap.mmap(file.fileno(), 0), m.__setitem__(5000, 120)])
        yield "other process", mapping[4999:5002], os.pread(file.fileno(), 3, 4999)
        let_go()
        os.ftruncate(file.fileno(), 4096)
        os.ftruncate(file.fileno(), 8192)
        yield "cut and grown", mapping[4999:5002], mapping[10:15]
    os.unlink("file")
    mapping[0:4] = b"last"
    yield "unlinked", mapping[0:4]
    with open("private", "w+b") as file:
        file.write(b"shared page")
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        mapping[0:6] = b"mine! "
        yield "private", read("private")


@check
def holes(at):
    write("file")
    yield "empty", told(lambda: runs("file"))
    os.truncate("file", 16 * MIB)
    yield "all hole", settled("file")
    fd = os.open("file", os.O_WRONLY)
    os.pwrite(fd, b"x" * MIB, 4 * MIB)
    os.pwrite(fd, b"y" * (2 * MIB), 10 * MIB)
    yield "while written", runs("file")
    fallocate(fd, 3, 11 * MIB, 2 * MIB)
    yield "punched", runs("file"), os.fstat(fd).st_size // MIB
    os.close(fd)
    fd = os.open("file", os.O_RDONLY)
    size = 16 * MIB
    for offset in (0, 4 * MIB + 5, size - 1, size, size + 1, -1):
        yield f"data at {offset}", told(os.lseek, fd, offset, os.SEEK_DATA)
        yield f"hole at {offset}", told(os.lseek, fd, offset, os.SEEK_HOLE)
    yield "other", told(os.lseek, fd, 0, 9)
    os.close(fd)
    os.mkdir("dir")
    yield "zeros read", read("file")[11 * MIB : 13 * MIB] == bytes(2 * MIB)


@check
def fallocate_modes(at):
    write("file", b"z" * 10_000)
    fd = os.open("file", os.O_RDWR)
    for name, mode, offset, length in [
        ("grow", 0, 0, 20_000),
        ("keep", 1, 30_000, 10_000),
        ("punch", 3, 100, 5000),
        ("punch behind", 3, 50_000, 5000),
        ("punch and grow", 2, 0, 10),
        ("zero", 16, 6000, 100),
        ("zero keep", 17, 30_000, 100),
        ("zero grow", 16, 24_000, 1000),
        ("nothing", 0, 0, 0),
        ("too far", 0, (1 << 63) - 10, 100),
        ("before", 0, -1, 10),
    ]:
        yield name, told(fallocate, fd, mode, offset, length), os.fstat(fd).st_size
    content = os.pread(fd, 100_000, 0)
    yield "content", len(content), content.count(b"z"), content[5099:5101], content[5999:6101:50]
    os.close(fd)
    fd = os.open("file", os.O_RDONLY)
    yield "read only", told(fallocate, fd, 0, 0, 10)
    os.close(fd)
    fd = os.open(".", os.O_RDONLY)
    yield "directory", told(fallocate, fd, 0, 0, 10)
    os.close(fd)


@check
def appending(at):
    def append(byte):
        fd = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for _ in range(300):
            os.write(fd, byte * 97)
        os.close(fd)

    children = []
    for byte in (b"a", b"b", b"c"):
        pid = os.fork()
        if pid == 0:
            append(byte)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    text = read("log")
    lines = {text[n : n + 97] for n in range(0, len(text), 97)}
    yield "three at once", len(text), sorted(lines) == [b"a" * 97, b"b" * 97, b"c" * 97]
    fd = os.open("log", os.O_RDWR | os.O_APPEND)
    os.pwrite(fd, b"end", 0)
    yield "pwrite goes to the end", read("log")[-3:], os.lseek(fd, 0, os.SEEK_CUR)
    os.close(fd)


@check
def unnamed_files(at):
    fd = told(os.open, ".", os.O_TMPFILE | os.O_RDWR, 0o600)
    yield "O_TMPFILE", fd if isinstance(fd, str) else "ok"
    if isinstance(fd, str):
        return
    os.write(fd, b"unnamed")
    yield "links", os.fstat(fd).st_nlink
    yield "link", told(os.link, f"/proc/self/fd/{fd}", "named", follow_symlinks=True)
    yield "content", told(read, "named")
    yield "links with a name", os.fstat(fd).st_nlink
    os.write(fd, b" and more")
    os.close(fd)
    yield "content of the named file", told(read, "named")
    fd = os.open(".", os.O_TMPFILE | os.O_EXCL | os.O_RDWR, 0o600)
    yield "link of an exclusive one", told(
        os.link, f"/proc/self/fd/{fd}", "other", follow_symlinks=True
    )
    os.close(fd)
    old = os.umask(0o027)
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o666)
    yield "umask", oct(os.fstat(fd).st_mode)
    os.umask(old)
    os.close(fd)
    yield "for reading", told(os.open, ".", os.O_TMPFILE | os.O_RDONLY, 0o600)
    os.mkdir("gone")
    folder = os.open("gone", os.O_RDONLY)
    os.rmdir("gone")
    yield "in a removed directory", told(
        os.open, f"/proc/self/fd/{folder}", os.O_TMPFILE | os.O_RDWR, 0o600
    )
    os.close(folder)
    os.mkdir("closed", 0o755)
    yield "by a stranger", as_user(USER, os.open, "closed", os.O_TMPFILE | os.O_RDWR, 0o600)


@check
def birth_times(at):
    def birth(path):
        return int(subprocess.run(["stat", "-c", "%W", path], capture_output=True).stdout)

    before = int(time.time())
    write("file", b"of now")
    os.mkdir("folder")
    born = [birth(path) for path in ("file", "folder", ".")]
    yield "at creation", [before - 100 < time <= before + 100 for time in born]
    os.utime("file", (1, 1))
    write("file", b"changed")
    os.rename("file", "renamed")
    yield "after changes", birth("renamed") == born[0]
    yield "device", told(os.mknod, "device", stat.S_IFBLK | 0o640, os.makedev(259, 70000))
    # With the birth time, the other attributes come by the same request.
    command = ["stat", "-c", "%F %a %t:%T %h %u %g %s %W", "--cached=never", "device"]
    shown = subprocess.run(command, capture_output=True).stdout
    yield "attributes of a device", shown.split()[:-1]
    yield "its birth", birth("device") >= born[0]


@check
def names_of_open_files(at):
    write("a", b"of a")
    write("b", b"of b")
    a, b = os.open("a", os.O_RDWR), os.open("b", os.O_RDWR)
    os.rename("a", "b")
    yield "replaced", os.pread(b, 9, 0), os.fstat(b).st_nlink, read("b")
    os.write(b, b"changed")
    os.rename("b", "c")
    os.unlink("c")
    yield "unlinked", os.pread(a, 9, 0), os.fstat(a).st_nlink, os.pread(b, 9, 0)
    os.ftruncate(a, 2)
    os.fchmod(a, 0o600)
    yield "still a file", os.fstat(a).st_size, oct(os.fstat(a).st_mode), told(os.fsync, a)
    yield "no link again", told(os.link, f"/proc/self/fd/{a}", "again", follow_symlinks=True)
    os.mkdir("dir")
    fd = os.open("dir", os.O_RDONLY)
    os.rmdir("dir")
    yield "removed folder", os.listdir(fd), told(os.stat, "x", dir_fd=fd), os.fstat(fd).st_nlink
    yield "in it", told(os.open, "x", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
    for one in (a, b, fd):
        os.close(one)


@check
def links_and_counts(at):
    os.mkdir("dir")
    yield "new", os.stat("dir").st_nlink
    for name in ("x", "y"):
        os.mkdir(f"dir/{name}")
    write("dir/file")
    yield "two inside", os.stat("dir").st_nlink
    os.rename("dir/x", "x")
    yield "one moved out", os.stat("dir").st_nlink
    os.rmdir("dir/y")
    os.link("dir/file", "other")
    yield "file", os.stat("other").st_nlink
    os.symlink("nowhere", "link")
    os.link("link", "link2", follow_symlinks=False)
    yield "link to a link", os.readlink("link2"), os.lstat("link").st_nlink
    yield "size of a link", os.lstat("link").st_size, oct(os.lstat("link").st_mode)
    yield "loop", told(os.symlink, "loop", "loop"), told(os.stat, "loop")
    yield "long target", told(os.symlink, "t" * 1000, "long"), told(os.symlink, "t" * 4096, "longer")
    yield "its length", len(told(os.readlink, "long"))
    yield "empty target", told(os.symlink, "", "empty")
    yield "folder", told(os.link, "dir", "dir2")
    yield "through a link", told(opened, "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    yield "not through", told(opened, "link", os.O_RDONLY | os.O_NOFOLLOW)
    yield "slash", told(os.stat, "other/"), told(os.mkdir, "new/"), told(os.rename, "other", "q/")
    yield "modes", told(os.chmod, "link", 0o600)
    yield "rmdir", told(os.rmdir, "dir"), told(os.rmdir, "other"), told(os.unlink, "dir")
    yield "dots", told(os.rmdir, "dir/."), told(os.rmdir, "dir/.."), told(os.rename, "dir/.", "q")
    yield "into itself", told(os.rename, "dir", "dir/inside"), told(os.rename, "dir", "dir")
    yield "kinds", told(os.rename, "other", "dir"), told(os.rename, "dir", "other")
    yield "not empty", told(os.rename, "x", "dir"), told(os.mkdir, "dir"), told(os.mkdir, "other/x")
    os.unlink("dir/file")
    yield "empty", told(os.rename, "x", "dir")


@check
def names(at):
    for name, wanted in [
        ("255 bytes", "n" * 255),
        ("256 bytes", "n" * 256),
        ("UTF-8", "ä" * 127 + "b"),
        ("UTF-8, 256 bytes", "ä" * 128),
        ("not UTF-8", b"\xff\xfe\x80"),
        ("newline", "a\nb\t\\ \x7f"),
        ("dots", "..."),
        ("dash", "-rf"),
    ]:
        yield name, told(write, wanted), told(lambda: stat.S_ISREG(os.stat(wanted).st_mode))
    yield "all", sorted(os.listdir(b"."))
    yield "cases", told(write, "Case"), told(opened, "case", os.O_RDONLY)
    yield "long path", told(os.stat, "x/" * 2048)
    yield "empty", told(os.stat, ""), told(os.mkdir, "")


@check
def times(at):
    write("file")
    for name, pair in [
        ("nanoseconds", (1_234_567_890_123_456_789, 987_654_321_000_000_001)),
        ("before 1970", (-1_500_000_000, -1)),
        ("1902", (-2_145_916_800_000_000_000,) * 2),
        ("2038", ((1 << 31) * 1_000_000_000 + 5,) * 2),
        ("2200", (7_258_118_400_000_000_000,) * 2),
        ("2440", (14_831_769_600_000_000_000 - 1,) * 2),
    ]:
        answer = told(os.utime, "file", ns=pair)
        found = os.stat("file")
        yield name, answer, found.st_atime_ns, found.st_mtime_ns

    class Timespec(ctypes.Structure):
        _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

    now, omit = (1 << 30) - 1, (1 << 30) - 2

    def utimensat(path, *parts, flags=0):
        pair = (Timespec * 2)(*[Timespec(*part) for part in parts])
        if LIBC.utimensat(-100, path.encode(), pair, flags) != 0:
            raise OSError(ctypes.get_errno(), "utimensat")

    os.utime("file", ns=(1, 2))
    yield "omit both", told(utimensat, "file", (0, omit), (0, omit))
    yield "same", os.stat("file").st_atime_ns, os.stat("file").st_mtime_ns
    yield "omit one", told(utimensat, "file", (0, omit), (5, 6)), os.stat("file").st_atime_ns
    yield "set", os.stat("file").st_mtime_ns
    yield "now", told(utimensat, "file", (7, 7), (0, now))
    yield "is now", abs(time.time() - os.stat("file").st_mtime) < 60, os.stat("file").st_atime_ns
    yield "wrong", told(utimensat, "file", (0, 1_000_000_000), (0, 0))
    os.symlink("file", "link")
    yield "of a link", told(utimensat, "link", (3, 4), (5, 6), flags=0x100), os.lstat("link").st_mtime_ns
    os.chmod("file", 0o666)
    os.chown("file", 0, 0)
    yield "touch by others", as_user(USER, utimensat, "file", (0, now), (0, now))
    yield "set by others", as_user(USER, utimensat, "file", (1, 1), (1, 1))
    os.chmod("file", 0o644)
    yield "touch without rights", as_user(USER, utimensat, "file", (0, now), (0, now))
    yield "omit without rights", as_user(USER, utimensat, "file", (0, omit), (0, omit))


@check
def what_changes_times(at):
    old = (10**9, 10**9)
    os.mkdir("dir")
    write("dir/kept", b"x")
    write("file", b"abc")

    def after(action, path="dir"):
        os.utime(path, ns=old)
        ctime = os.stat(path).st_ctime_ns
        time.sleep(0.02)
        answer = told(action)
        found = os.stat(path)
        changed = "m" * (found.st_mtime_ns != old[1]) + "c" * (found.st_ctime_ns != ctime)
        return answer, changed

    yield "create", after(lambda: write("dir/new"))
    yield "create again", after(lambda: write("dir/new"))
    yield "write inside", after(lambda: write("dir/new", b"x"))
    yield "link", after(lambda: os.link("dir/new", "dir/hard"))
    yield "link, of the file", after(lambda: os.link("dir/new", "dir/hard2"), "dir/new")
    yield "unlink, of the file", after(lambda: os.unlink("dir/hard2"), "dir/new")
    yield "unlink", after(lambda: os.unlink("dir/hard"))
    yield "rename inside", after(lambda: os.rename("dir/new", "dir/newer"))
    fd = os.open("dir/newer", os.O_RDONLY)
    yield "rename, of the file", after(lambda: os.rename("dir/newer", "dir/new"), fd)
    os.close(fd)
    yield "rename out", after(lambda: os.rename("dir/new", "out"))
    yield "mkdir", after(lambda: os.mkdir("dir/sub"))
    yield "rmdir", after(lambda: os.rmdir("dir/sub"))
    yield "chmod", after(lambda: os.chmod("dir", 0o700))
    yield "list", after(lambda: len(os.listdir("dir")))
    yield "failed create", after(lambda: os.mkdir("dir/kept"))
    yield "chmod of a file", after(lambda: os.chmod("file", 0o600), "file")
    yield "chown of a file", after(lambda: os.chown("file", 5, 5), "file")
    yield "write", after(lambda: write("file", b"xyz"), "file")
    yield "write nothing", after(lambda: write("file"), "file")
    yield "truncate", after(lambda: os.truncate("file", 1), "file")
    yield "truncate to the same", after(lambda: os.truncate("file", 1), "file")
    yield "O_TRUNC of an empty file", (os.truncate("file", 0), after(lambda: write("file", b"", os.O_TRUNC), "file"))
    yield "xattr", after(lambda: os.setxattr("file", "user.a", b"1"), "file")
    fd = os.open("file", os.O_RDWR)
    yield "fallocate", after(lambda: fallocate(fd, 0, 0, 100), "file")
    yield "punch", after(lambda: fallocate(fd, 3, 0, 50), "file")
    with mmap.mmap(fd, 100) as mapping:
        yield "store", after(lambda: mapping.__setitem__(0, 1) or mapping.flush(), "file")
    os.close(fd)


@check
def large_directories(at):
    count = 10_000
    os.mkdir("dir")
    for number in range(count):
        write(f"dir/{number:05}")
    kept = {f"{number:05}" for number in range(0, count, 2)}
    found, seen = [], 0
    with os.scandir("dir") as entries:
        for entry in entries:
            found.append(entry.name)
            seen += 1
            # Others come and go meanwhile.
            if seen % 50 == 0:
                for number in range(seen, seen + 50):
                    if number % 2 and number < count:
                        os.unlink(f"dir/{number:05}")
                write(f"dir/new-{seen}")
    yield "untouched", len([name for name in found if name in kept])
    yield "twice", len(found) - len(set(found))
    yield "left", sorted(name for name in os.listdir("dir") if name in kept) == sorted(kept)

    class Dir:
        """seekdir and telldir."""

        def __init__(self, path):
            for name in ("opendir", "readdir64"):
                getattr(LIBC, name).restype = ctypes.c_void_p
            LIBC.telldir.restype = ctypes.c_long
            self.handle = ctypes.c_void_p(LIBC.opendir(path.encode()))

        def tell(self):
            return LIBC.telldir(self.handle)

        def seek(self, place):
            LIBC.seekdir(self.handle, ctypes.c_long(place))

        def rewind(self):
            LIBC.rewinddir(self.handle)

        def next(self):
            entry = LIBC.readdir64(self.handle)
            return ctypes.string_at(entry + 19) if entry else None

    listing, places = Dir("dir"), []
    while True:
        place, name = listing.tell(), listing.next()
        if name is None:
            break
        places.append((place, name))
    wrong = 0
    for place, name in places[:: len(places) // 97]:
        listing.seek(place)
        wrong += listing.next() != name
    yield "seekdir", wrong, len({place for place, _ in places}) == len(places)
    listing.rewind()
    write("dir/after-rewind")
    listing.rewind()
    names_now = set()
    while (name := listing.next()) is not None:
        names_now.add(name)
    yield "rewinddir", b"after-rewind" in names_now
    yield "dots", {b".", b".."} <= names_now
    yield "not empty", told(os.rmdir, "dir")
    subprocess.run(["rm", "-r", "dir"], check=True)
    yield "gone", os.path.exists("dir")


@check
def locks(at):
    write("file", b"x" * 100)
    fd = os.open("file", os.O_RDWR)
    other = os.open("file", os.O_RDWR)
    yield "flock", told(fcntl.flock, fd, fcntl.LOCK_EX), told(
        fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB
    )
    fcntl.flock(fd, fcntl.LOCK_UN)
    yield "unlocked", told(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)

    def lock(length, start, how=fcntl.LOCK_EX):
        with open("file", "r+b") as file:
            fcntl.lockf(file, how | fcntl.LOCK_NB, length, start)

    yield "range held", as_user(0, lock, 5, 5), as_user(0, lock, 5, 20)
    yield "range shared", as_user(0, lock, 5, 5, fcntl.LOCK_SH)
    fcntl.lockf(fd, fcntl.LOCK_UN, 5, 0)
    yield "half", as_user(0, lock, 5, 0), as_user(0, lock, 5, 5)
    ofd = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 50, 10, 0)
    yield "of the description", isinstance(told(fcntl.fcntl, fd, 37, ofd), bytes), told(
        fcntl.fcntl, other, 37, ofd
    )
    # To close any descriptor of the file gives the locks of the process up.
    os.close(os.open("file", os.O_RDONLY))
    yield "given up", as_user(0, lock, 5, 5)
    yield "read only", told(lambda: fcntl.lockf(os.open("file", os.O_RDONLY), fcntl.LOCK_EX))
    yield "lease", told(fcntl.fcntl, fd, fcntl.F_GETLEASE)


@check
def durable(at):
    os.mkdir("dir")
    write("dir/file", b"x")
    for path, flags in [("dir", os.O_RDONLY), ("dir/file", os.O_RDONLY), ("dir/file", os.O_RDWR)]:
        fd = os.open(path, flags)
        yield path, told(os.fsync, fd), told(os.fdatasync, fd)
        os.close(fd)
    fd = os.open("dir/file", os.O_WRONLY | os.O_SYNC)
    yield "O_SYNC", os.write(fd, b"synced"), told(LIBC.syncfs, fd)
    os.close(fd)
    space = os.statvfs(".")
    yield "space", space.f_namemax, space.f_bavail <= space.f_bfree <= space.f_blocks
    yield "units", space.f_frsize > 0 and space.f_bsize % space.f_frsize == 0, space.f_flag & 1


@check
def copied_ranges(at):
    write("source", bytes(range(256)) * 400)
    write("target", b"t" * 1000)
    source, target = os.open("source", os.O_RDONLY), os.open("target", os.O_RDWR)
    copy = os.copy_file_range
    yield "middle", told(copy, source, target, 5000, 100, 500), os.fstat(target).st_size
    yield "content", os.pread(target, 6000, 0) == b"t" * 500 + read("source")[100:5100]
    yield "past the end", told(copy, source, target, 5000, 102_000, 0)
    yield "behind the end", told(copy, source, target, 5000, 200_000, 0)
    yield "nothing", told(copy, source, target, 0, 0, 0)
    yield "overlap", told(copy, target, target, 1000, 0, 500)
    yield "same file", told(copy, target, target, 100, 0, 5400)
    yield "wrong way", told(copy, target, source, 10, 0, 0)
    append = os.open("target", os.O_WRONLY | os.O_APPEND)
    yield "append", told(copy, source, append, 10, 0, 0)
    folder = os.open(".", os.O_RDONLY)
    yield "folder", told(copy, folder, target, 10, 0, 0)
    yield "sendfile", told(os.sendfile, target, source, 0, 3000)
    for fd in (source, target, append, folder):
        os.close(fd)


@check
def sizes(at):
    write("file", b"0123456789")
    for size in (5, 20, 0, (1 << 40) + 7, 3):
        yield f"to {size}", told(os.truncate, "file", size), os.stat("file").st_size
    yield "content", read("file")
    yield "negative", told(os.truncate, "file", -1)
    yield "folder", told(os.truncate, ".", 0), told(opened, ".", os.O_WRONLY)
    fd = os.open("file", os.O_RDONLY)
    yield "read only", told(os.ftruncate, fd, 0), told(os.write, fd, b"x")
    os.close(fd)
    fd = os.open("file", os.O_RDWR)
    yield "behind", os.pwrite(fd, b"x", 100_000), os.fstat(fd).st_size, os.pread(fd, 3, 50_000)
    yield "at the end", os.pread(fd, 10, 100_001), told(os.pwrite, fd, b"x", -1)
    yield "vectors", os.writev(fd, [b"ab", b"", b"cd"]), os.pread(fd, 4, 0)
    os.close(fd)
    yield "no rights", as_user(USER, os.truncate, "file", 0)


@check
def extended_attributes(at):
    write("file")
    os.mkdir("dir")
    os.symlink("file", "link")
    os.mkfifo("fifo")
    yield "set", told(os.setxattr, "file", "user.a", b"one"), os.getxattr("file", "user.a")
    yield "create", told(os.setxattr, "file", "user.a", b"x", os.XATTR_CREATE)
    yield "replace", told(os.setxattr, "file", "user.b", b"x", os.XATTR_REPLACE)
    yield "empty value", told(os.setxattr, "file", "user.empty", b""), told(os.getxattr, "file", "user.empty")
    yield "missing", told(os.getxattr, "file", "user.none"), told(os.removexattr, "file", "user.none")
    yield "list", sorted(os.listxattr("file"))
    for name in ("nothing", "user.", "foreign.a", "trusted.a", "security.a", "system.a", "user." + "n" * 250, "user." + "n" * 251):
        yield name[:20] + str(len(name)), told(os.setxattr, "file", name, b"v")
    yield "value of 64K", told(os.setxattr, "file", "user.large", b"v" * 65_537)
    for path in ("dir", "link", "fifo"):
        yield path, told(os.setxattr, path, "user.a", b"1", follow_symlinks=False)
        yield path + " trusted", told(os.setxattr, path, "trusted.a", b"1", follow_symlinks=False)
    os.chmod("file", 0o644)
    yield "others get", as_user(USER, os.getxattr, "file", "user.a")
    yield "others set", as_user(USER, os.setxattr, "file", "user.a", b"2")
    yield "others trusted", as_user(USER, os.getxattr, "file", "trusted.a")
    yield "others set trusted", as_user(USER, os.setxattr, "file", "trusted.a", b"1")
    yield "others set security", as_user(USER, os.setxattr, "file", "security.a", b"1")
    yield "others list", as_user(USER, lambda: sorted(os.listxattr("file")))
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    yield "sticky folder", as_user(USER, os.setxattr, "sticky", "user.a", b"1")
    yield "removed", told(os.removexattr, "file", "user.a"), told(os.getxattr, "file", "user.a")


@check
def privileges_of_files(at):
    def bits(path="file"):
        return oct(os.stat(path).st_mode & 0o7777)

    def fresh(mode, uid=0, gid=0):
        write("file", b"program", os.O_TRUNC)
        os.chown("file", uid, gid)
        os.chmod("file", mode)

    for mode in (0o6777, 0o2767, 0o6666):
        fresh(mode, USER, USER)
        as_user(USER, write, "file", b"x")
        yield f"owner writes {mode:o}", bits()
        fresh(mode)
        as_user(OTHER, write, "file", b"x")
        yield f"other writes {mode:o}", bits()
        fresh(mode)
        write("file", b"x")
        yield f"root writes {mode:o}", bits()
        fresh(mode)
        os.chown("file", 5, 6)
        yield f"chown {mode:o}", bits()
        fresh(mode, USER, USER)
        as_user(USER, os.truncate, "file", 1)
        yield f"owner truncates {mode:o}", bits()
        fresh(mode, USER, USER)
        yield f"owner changes nothing {mode:o}", as_user(USER, os.chown, "file", -1, -1), bits()
        fresh(mode)
        yield f"root chowns to the same {mode:o}", told(os.chown, "file", 0, 0), bits()
    fresh(0o755, USER, OTHER)
    yield "set-gid of another group", as_user(USER, os.chmod, "file", 0o2755), bits()
    yield "set-gid of an own group", as_user(USER, os.chmod, "file", 0o2755, groups=[OTHER]), bits()
    yield "chmod by others", as_user(OTHER, os.chmod, "file", 0o777)
    yield "chown by the owner", as_user(USER, os.chown, "file", OTHER, -1)
    yield "chgrp to a foreign group", as_user(USER, os.chown, "file", -1, 77)
    yield "chgrp to an own group", as_user(USER, os.chown, "file", -1, 77, groups=[77]), os.stat("file").st_gid
    os.mkdir("dir")
    os.chmod("dir", 0o3777)
    os.chown("dir", 0, 77)
    as_user(USER, write, "dir/mine")
    as_user(USER, os.mkdir, "dir/sub")
    yield "inherits the group", os.stat("dir/mine").st_gid, bits("dir/mine"), bits("dir/sub")
    yield "sticky", as_user(OTHER, os.unlink, "dir/mine"), as_user(OTHER, os.rename, "dir/mine", "dir/x")
    yield "over another's", as_user(OTHER, write, "dir/theirs"), as_user(
        OTHER, os.rename, "dir/theirs", "dir/mine"
    )
    yield "by the owner", as_user(USER, os.unlink, "dir/mine")
    yield "mode of a new file", told(os.chmod, ".", 0o777), as_user(USER, opened, "new", os.O_CREAT | os.O_WRONLY, 0o6777, umask=0o027), bits("new")
    yield "unwritable to its maker", as_user(USER, opened, "ro", os.O_CREAT | os.O_RDWR, 0o400), bits("ro")
    yield "again", as_user(USER, opened, "ro", os.O_RDWR)
    yield "search", told(os.chmod, "dir", 0o600), as_user(USER, os.stat, "dir/sub")


@check
def access_control_lists(at):
    if not has("setfacl"):
        return
    os.mkdir("dir")
    run = lambda *words: subprocess.run(words, capture_output=True, text=True)

    def acl(path):
        lines = run("getfacl", "-cpEn", path).stdout.split()
        return " ".join(lines)

    yield "set", run("setfacl", "-d", "-m", f"u:{USER}:rwx,g::r-x,o::---", "dir").returncode
    old = os.umask(0o077)
    write("dir/file")
    os.mkdir("dir/sub")
    os.umask(old)
    yield "file", acl("dir/file")
    yield "folder", acl("dir/sub")
    yield "chmod", told(os.chmod, "dir/file", 0o640), acl("dir/file")
    yield "named user", run("setfacl", "-m", f"u:{OTHER}:rw", "dir/file").returncode, acl("dir/file")
    os.chmod("dir", 0o755)
    yield "others may", as_user(OTHER, opened, "dir/file", os.O_RDWR), as_user(5, opened, "dir/file", os.O_RDONLY)
    raw = told(os.getxattr, "dir/file", "system.posix_acl_access")
    yield "set by others", as_user(5, os.setxattr, "dir/file", "system.posix_acl_access", raw)
    yield "removed by others", as_user(5, os.removexattr, "dir/file", "system.posix_acl_access")
    yield "nonsense", told(os.setxattr, "dir/file", "system.posix_acl_access", b"junk")
    yield "default of a file", told(os.setxattr, "dir/file", "system.posix_acl_default", raw)
    yield "removed", told(os.removexattr, "dir/file", "system.posix_acl_access"), acl("dir/file")


def forbidden(flag, is_directory):
    """Every operation on a node with a flag, as root. Each on a node of its own."""
    operations = {
        "read": lambda p: opened(p, os.O_RDONLY),
        "stat": lambda p: None if os.stat(p) else None,
        "chmod": lambda p: os.chmod(p, 0o700),
        "chown": lambda p: os.chown(p, 5, 5),
        "chown to the same": lambda p: os.chown(p, 0, 0),
        "touch": lambda p: os.utime(p),
        "set times": lambda p: os.utime(p, ns=(1, 1)),
        "rename": lambda p: os.rename(p, p + ".moved"),
        "rename over": lambda p: (os.mkdir if is_directory else write)(p + ".new")
        or os.rename(p + ".new", p),
        "set xattr": lambda p: os.setxattr(p, "user.b", b"2"),
        "remove xattr": lambda p: os.removexattr(p, "user.a"),
        "set trusted": lambda p: os.setxattr(p, "trusted.a", b"2"),
        "get xattr": lambda p: None if os.getxattr(p, "user.a") else None,
        "other flag": lambda p: set_flags(p, flag | 0x40),
        "clear": lambda p: set_flags(p, 0),
    }
    if is_directory:
        operations |= {
            "list": lambda p: None if os.listdir(p) else None,
            "create in it": lambda p: write(p + "/new"),
            "mkdir in it": lambda p: os.mkdir(p + "/new"),
            "symlink in it": lambda p: os.symlink("x", p + "/new"),
            "link into it": lambda p: write(p + ".f") or os.link(p + ".f", p + "/new"),
            "rename into it": lambda p: write(p + ".f") or os.rename(p + ".f", p + "/new"),
            "unlink in it": lambda p: os.unlink(p + "/kept"),
            "rmdir in it": lambda p: os.rmdir(p + "/sub"),
            "rename in it": lambda p: os.rename(p + "/kept", p + "/other"),
            "rename out of it": lambda p: os.rename(p + "/kept", p + ".out"),
            "exchange": lambda p: write(p + ".f") or exchange(p + ".f", p + "/kept"),
            "write in it": lambda p: write(p + "/kept", b"new"),
            "chmod in it": lambda p: os.chmod(p + "/kept", 0o600),
            "rmdir": os.rmdir,
        }
    else:
        operations |= {
            "write": lambda p: opened(p, os.O_WRONLY),
            "read and write": lambda p: opened(p, os.O_RDWR),
            "append": lambda p: write(p, b"more", os.O_APPEND),
            "cut off": lambda p: opened(p, os.O_WRONLY | os.O_TRUNC),
            "cut off at the end": lambda p: opened(p, os.O_WRONLY | os.O_TRUNC | os.O_APPEND),
            "cut off by a reader": lambda p: opened(p, os.O_RDONLY | os.O_TRUNC),
            "create": lambda p: opened(p, os.O_WRONLY | os.O_CREAT),
            "create to read": lambda p: opened(p, os.O_RDONLY | os.O_CREAT),
            "truncate": lambda p: os.truncate(p, 1),
            "truncate to the same": lambda p: os.truncate(p, 7),
            "grow": lambda p: os.truncate(p, 100),
            "unlink": os.unlink,
            "link": lambda p: os.link(p, p + ".hard"),
            "exchange": lambda p: write(p + ".f") or exchange(p + ".f", p),
            "append and map": lambda p: map_to_write(p, os.O_RDWR | os.O_APPEND),
        }
    for name, operation in operations.items():
        path = name.replace(" ", "-")
        if is_directory:
            os.mkdir(path)
            write(path + "/kept", b"content")
            if name != "rmdir":
                os.mkdir(path + "/sub")
            if name == "rmdir":
                os.unlink(path + "/kept")
        else:
            write(path, b"content")
        os.setxattr(path, "user.a", b"1")
        set_flags(path, flag)
        answer = told(operation, path)
        for left in (path, path + ".moved", path + ".f"):
            if os.path.exists(left):
                set_flags(left, 0)
        content = "" if is_directory or not os.path.exists(path) else read(path)
        yield name, answer, content


def exchange(one, two):
    if LIBC.renameat2(-100, one.encode(), -100, two.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def map_to_write(path, flags):
    fd = os.open(path, flags)
    try:
        with mmap.mmap(fd, 0) as mapping:
            mapping[0:1] = b"X"
    finally:
        os.close(fd)


@check
def immutable_files(at):
    yield from forbidden(IMMUTABLE, False)


@check
def append_only_files(at):
    yield from forbidden(APPEND, False)


@check
def immutable_folders(at):
    yield from forbidden(IMMUTABLE, True)


@check
def append_only_folders(at):
    yield from forbidden(APPEND, True)


@check
def flags_while_open(at):
    for name, flag in (("immutable", IMMUTABLE), ("append only", APPEND)):
        write(name, b"content" * 1000)
        fd = os.open(name, os.O_RDWR)
        mapping = mmap.mmap(fd, 0)
        mapping[0:5] = b"store"
        set_flags(name, flag)
        yield f"{name}: what was stored before", read(name)[:7]
        yield f"{name}: flush", told(mapping.flush), told(os.fsync, fd)
        yield f"{name}: ftruncate", told(os.ftruncate, fd, 3)
        yield f"{name}: fchmod", told(os.fchmod, fd, 0o600)
        yield f"{name}: punch", told(fallocate, fd, 3, 0, 100)
        yield f"{name}: others", as_user(USER, set_flags, name, 0)
        mapping.close()
        os.close(fd)
        yield f"{name}: content", read(name)[:7]
        set_flags(name, 0)
        yield f"{name}: again", told(write, name, b"done"), read(name)[:7]


@check
def odd_nodes(at):
    yield "fifo", told(os.mkfifo, "fifo", 0o640), oct(os.stat("fifo").st_mode)
    yield "device", told(os.mknod, "dev", 0o600 | stat.S_IFCHR, os.makedev(1, 3)), os.stat("dev").st_rdev
    yield "is null", told(lambda: len(read("dev"))), told(write, "dev", b"x")
    yield "large number", told(os.mknod, "dev2", 0o600 | stat.S_IFBLK, os.makedev(300, 70_000)), os.stat("dev2").st_rdev
    yield "by a user", told(os.chmod, ".", 0o777), as_user(USER, os.mknod, "mine", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    yield "regular", told(os.mknod, "plain", 0o600 | stat.S_IFREG)
    import socket

    with socket.socket(socket.AF_UNIX) as bound:
        yield "socket", told(bound.bind, "socket"), oct(os.stat("socket").st_mode)
    yield "open a socket", told(opened, "socket", os.O_RDONLY)
    write("program", b"#!/bin/sh\necho ran\n")
    os.chmod("program", 0o755)
    yield "program", told(lambda: subprocess.run(["./program"], capture_output=True).stdout)
    subprocess.run(["cp", "/bin/true", "true"], check=True)
    fd = os.open("true", os.O_WRONLY)
    yield "busy", told(lambda: subprocess.run(["./true"]).returncode)
    os.close(fd)
    yield "ran", told(lambda: subprocess.run(["./true"]).returncode)


def main():
    root = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2:]
    signal.alarm(240)
    os.umask(0o022)
    for function in CHECKS:
        if wanted and function.__name__ not in wanted:
            continue
        folder = os.path.join(root, function.__name__)
        os.mkdir(folder)
        os.chdir(folder)
        try:
            for name, *answer in function(folder):
                print(f"{function.__name__}: {name}: {answer}".replace("\n", "\\n"), flush=True)
        except Exception as error:
            print(f"{function.__name__}: ended with {type(error).__name__} {error}", flush=True)
            raise
        os.chdir(root)


main()
