#!/usr/bin/env python3
"""Random histories of file systems and volumes, sent as streams, and what must come out of them.

history.py make FOLDER POOL SEED...   makes the histories in the pool, and writes to the folder their
                                      streams, and a manifest of each snapshot
history.py take FOLDER POOL           receives them in another pool, and compares the manifests
history.py pass FOLDER POOL TO        writes what was received as streams again, to the folder TO

`zfs` is the first one in the path. With HISTORY_MOUNTS=1 snapshots are mounted to be read; else they
are read in .zfs/snapshot. A pool is mounted at HISTORY_ROOT/POOL.
"""
import glob, hashlib, json, os, random, stat, subprocess, sys, time

ROOT = os.environ.get("HISTORY_ROOT", "/mnt")
KINDS = ("chain", "all", "package", "large", "raw", "bookmark", "small", "plain", "clone", "volume")
ROUNDS = 4


def zfs(*words, **more):
    return subprocess.run(["zfs", *words], check=True, **more)


def path(dataset):
    return os.path.join(ROOT, dataset)


# --- changes of a folder ---------------------------------------------------------------------------

def content(rng):
    size = rng.choice((0, 1, 90, 600, 5_000, 130_000, 140_000, 400_000, 1_500_000))
    size = rng.randint(size // 2, size)
    if rng.random() < 0.4:
        return rng.randbytes(size)
    if rng.random() < 0.3:
        return bytes(size)
    return (b"line %d\n" % rng.randint(0, 9)) * (size // 7)


def entries(top):
    folders, others = [top], []
    for at, inner, files in os.walk(top):
        # Not into other file systems.
        inner[:] = [name for name in inner if not os.path.ismount(os.path.join(at, name))]
        folders += [os.path.join(at, name) for name in sorted(inner) if not os.path.islink(os.path.join(at, name))]
        others += [os.path.join(at, name) for name in sorted(files)]
    return sorted(folders), sorted(others)


def name(rng):
    length = rng.choice((1, 8, 30, 180))
    return "".join(rng.choice(("a", "b", "é", "x", "0", "_")) for _ in range(length)).encode()[:240].decode(errors="ignore")


def change(rng, top):
    folders, others = entries(top)
    folder = rng.choice(folders)
    files = [at for at in others if stat.S_ISREG(os.lstat(at).st_mode)]
    new = os.path.join(folder, name(rng))
    what = rng.choice(("new", "new", "new", "write", "write", "append", "cut", "grow", "mkdir", "remove",
                       "move", "link", "symlink", "fifo", "device", "xattr", "mode", "time", "tree"))
    is_free = not os.path.lexists(new) or stat.S_ISREG(os.lstat(new).st_mode)
    if what == "new" and is_free:
        with open(new, "wb") as file:
            file.write(content(rng))
    elif what == "mkdir" and not os.path.lexists(new):
        os.mkdir(new)
    elif what in ("symlink", "fifo", "device") and not os.path.lexists(new):
        if what == "symlink":
            os.symlink("t" * rng.randint(1, 300), new)
        elif what == "fifo":
            os.mkfifo(new)
        else:
            os.mknod(new, stat.S_IFCHR | 0o600, os.makedev(rng.randint(0, 99), rng.randint(0, 99)))
    elif what == "tree" and not os.path.lexists(new):
        os.mkdir(new)
        for number in range(rng.randint(1, 120)):
            with open(os.path.join(new, "%d%s" % (number, "n" * rng.randint(0, 60))), "wb") as file:
                file.write(b"%d" % number * (number % 40))
    elif what == "move" and others:
        at = rng.choice(others)
        if not os.path.isdir(new):
            os.rename(at, new)
    elif what == "remove" and others:
        os.unlink(rng.choice(others))
    elif files:
        file = rng.choice(files)
        if what == "link" and not os.path.lexists(new):
            os.link(file, new)
        elif what == "xattr":
            key = "user.k%d" % rng.randint(0, 5)
            if key in os.listxattr(file) and rng.random() < 0.4:
                os.removexattr(file, key)
            else:
                os.setxattr(file, key, rng.randbytes(rng.choice((3, 300, 20_000))))
        elif what == "mode":
            os.chmod(file, rng.choice((0o600, 0o644, 0o4755, 0o1777)))
            os.chown(file, rng.randint(0, 70_000), rng.randint(0, 70_000))
        elif what == "time":
            os.utime(file, ns=(0, rng.randint(0, 2**61)))
        elif what in ("write", "append", "cut", "grow"):
            size = os.path.getsize(file)
            with open(file, "r+b") as handle:
                if what == "write":
                    handle.seek(rng.randint(0, max(size, 1)))
                    handle.write(content(rng))
                elif what == "append":
                    handle.seek(size)
                    handle.write(content(rng))
                elif what == "cut":
                    handle.truncate(rng.randint(0, size))
                else:
                    handle.truncate(size + rng.randint(1, 900_000))


def device(name):
    """The block device of a volume or of its snapshot, with udev or without."""
    if os.environ.get("HISTORY_MOUNTS"):
        for path in glob.glob("/dev/zd*"):
            told = subprocess.run(["/usr/lib/udev/zvol_id", path], stdout=subprocess.PIPE, text=True)
            if told.stdout.strip() == name:
                return path
    return None


def act(rng, dataset):
    volume = device(dataset)
    if volume:
        with open(volume, "r+b") as volume:
            for _ in range(30):
                volume.seek(rng.randint(0, 1900) * 4096)
                volume.write(rng.randbytes(4096 * rng.randint(1, 9)))
            os.fsync(volume.fileno())
        return
    for _ in range(40):
        change(rng, path(dataset))


# --- what a snapshot holds -------------------------------------------------------------------------

def digest(file):
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def listing(top):
    lines, links = [], {}
    for at, folders, files in os.walk(top):
        for entry in sorted(folders + files) + (["."] if at == top else []):
            full = os.path.join(at, entry)
            found = os.lstat(full)
            line = [os.path.relpath(full, top), oct(found.st_mode), found.st_uid, found.st_gid]
            if not stat.S_ISDIR(found.st_mode):
                line += [found.st_nlink, found.st_size, found.st_rdev]
                # Names of one file, whatever its number is.
                line.append(links.setdefault(found.st_ino, line[0]))
            line.append(found.st_mtime_ns)
            if stat.S_ISREG(found.st_mode):
                line.append(digest(full))
                line += [[key, os.getxattr(full, key).hex()] for key in sorted(os.listxattr(full)) if key.startswith("user.")]
            elif stat.S_ISLNK(found.st_mode):
                line.append(os.readlink(full))
            lines.append(line)
    return sorted(lines, key=lambda line: line[0])


def manifest(snapshot):
    dataset, short = snapshot.split("@")
    kind = zfs("get", "-H", "-o", "value", "type", dataset, stdout=subprocess.PIPE, text=True).stdout.strip()
    if kind == "volume":
        if not os.environ.get("HISTORY_MOUNTS"):
            return None  # read where volumes are block devices
        zfs("set", "snapdev=visible", dataset)
        for _ in range(100):
            if device(snapshot):
                break
            time.sleep(0.1)
        return [["volume", digest(device(snapshot))]]
    if not os.environ.get("HISTORY_MOUNTS"):
        return listing(os.path.join(path(dataset), ".zfs/snapshot", short))
    at = os.path.join(ROOT, "history")
    os.makedirs(at, exist_ok=True)
    subprocess.run(["mount", "-t", "zfs", snapshot, at], check=True)
    try:
        return listing(at)
    finally:
        subprocess.run(["umount", at], check=True)


def snapshots(top):
    said = zfs("list", "-H", "-r", "-t", "snapshot", "-o", "name", top, stdout=subprocess.PIPE, text=True)
    return said.stdout.split()


# --- histories -------------------------------------------------------------------------------------

class History:
    """One history: a dataset of the pool, and the streams that it is sent as."""

    def __init__(self, folder, pool, seed):
        self.kind, self.seed = KINDS[seed % len(KINDS)], seed
        self.folder = os.path.join(folder, str(seed))
        self.top = f"{pool}/h{seed}"
        self.rng = random.Random(f"history {seed}")
        self.streams = []
        os.makedirs(self.folder)

    def send(self, *words, receive=()):
        file = f"{len(self.streams)}.stream"
        with open(os.path.join(self.folder, file), "wb") as out:
            zfs("send", *words, stdout=out)
        self.streams.append({"file": file, "send": list(words), "receive": list(receive)})

    def round(self, number, *datasets):
        for dataset in datasets or (self.top,):
            act(self.rng, dataset)
        zfs("snapshot", "-r", f"{self.top}@{number}")

    def create(self):
        rng, wanted = self.rng, {}
        for key, values in (("compression", ("off", "lz4", "zstd", "gzip")), ("dnodesize", ("legacy", "auto")),
                            ("xattr", ("sa", "on")), ("recordsize", ("4K", "16K", "128K"))):
            wanted[key] = rng.choice(values)
        if self.kind == "large":
            wanted["recordsize"] = "1M"
        if self.kind == "small":
            wanted |= {"recordsize": "512", "compression": "lz4"}
        options = [word for key, value in wanted.items() for word in ("-o", f"{key}={value}")]
        if self.kind == "raw":
            key = os.path.join(self.folder, "key")
            with open(key, "wb") as file:
                file.write(rng.randbytes(32))
            options += ["-o", "encryption=on", "-o", "keyformat=raw", "-o", f"keylocation=file://{key}"]
        if self.kind == "volume":
            options = ["-V", "8M", "-s", "-o", "volblocksize=8K"]
        zfs("create", *options, self.top)

    def make(self):
        self.create()
        top, last = self.top, ROUNDS - 1
        if self.kind == "package":
            return self.make_package()
        if self.kind == "clone":
            self.round(0)
            zfs("clone", f"{top}@0", f"{top}/clone")
            self.round(1, top, f"{top}/clone")
            self.send("-R", f"{top}@1")
            return self.finish()
        for number in range(2 if self.kind == "bookmark" else ROUNDS):
            self.round(number)
        full = {"large": ("-L", "-e", "-c"), "raw": ("-w",), "small": ("-e", "-c"), "all": ("-p",)}
        words = full.get(self.kind, ())
        self.send(*words, f"{top}@0")
        if self.kind == "all":
            self.send("-I", "@0", f"{top}@{last}")
        elif self.kind == "bookmark":
            zfs("bookmark", f"{top}@0", f"{top}#mark")
            found = self.manifests()
            zfs("destroy", f"{top}@0")
            self.send("-i", f"{top}#mark", f"{top}@1")
            return self.write(found)
        else:
            for number in range(last):
                self.send(*words, "-i", f"@{number}", f"{top}@{number + 1}")
        return self.finish()

    def make_package(self):
        top = self.top
        zfs("create", f"{top}/kid")
        zfs("create", f"{top}/gone")
        self.round(0, top, f"{top}/kid", f"{top}/gone")
        zfs("clone", f"{top}/kid@0", f"{top}/clone")
        self.round(1, top, f"{top}/clone")
        self.send("-R", f"{top}@1")
        zfs("rename", f"{top}/kid", f"{top}/child")
        zfs("destroy", "-r", f"{top}/gone")
        zfs("promote", f"{top}/clone")
        self.round(2, f"{top}/child", f"{top}/clone")
        zfs("destroy", f"{top}@0")
        self.round(3, top)
        self.send("-R", "-I", "@1", f"{top}@3", receive=("-F",))
        return self.finish()

    def manifests(self):
        return {name[len(self.top):]: manifest(name) for name in snapshots(self.top)}

    def finish(self):
        self.write(self.manifests())

    def write(self, found):
        told = {"kind": self.kind, "streams": self.streams, "manifests": found}
        with open(os.path.join(self.folder, "history.json"), "w") as file:
            json.dump(told, file)


def load(folder):
    for seed in sorted(os.listdir(folder), key=int):
        with open(os.path.join(folder, seed, "history.json")) as file:
            yield seed, json.load(file)


def differences(wanted, found):
    for at in sorted(wanted.keys() | found.keys()):
        ours, theirs = wanted.get(at, "no snapshot"), found.get(at, "no snapshot")
        if ours == theirs or None in (ours, theirs):
            continue
        if isinstance(ours, str) or isinstance(theirs, str):
            yield f"{at}: {'missing' if isinstance(theirs, str) else 'too many'}"
            continue
        for line in [line for line in ours if line not in theirs][:3] + [line for line in theirs if line not in ours][:3]:
            yield f"{at}: {str(line)[:300]}"


def take(folder, pool):
    failed = 0
    for seed, told in load(folder):
        top, wrong = f"{pool}/h{seed}", []
        try:
            for stream in told["streams"]:
                with open(os.path.join(folder, seed, stream["file"]), "rb") as file:
                    zfs("receive", *stream["receive"], "-u", top, stdin=file)
            if told["kind"] == "raw":
                zfs("load-key", "-L", "file://" + os.path.join(folder, seed, "key"), top)
            if told["kind"] != "volume":
                said = zfs("list", "-H", "-r", "-o", "name", top, stdout=subprocess.PIPE, text=True)
                for dataset in said.stdout.split():
                    zfs("mount", dataset)
            found = {name[len(top):]: manifest(name) for name in snapshots(top)}
            wrong = list(differences(told["manifests"], found))
        except (subprocess.CalledProcessError, OSError) as error:
            wrong.append(str(error))
        for line in wrong:
            print(f"history {seed} ({told['kind']}): {line}", flush=True)
        failed += bool(wrong)
        print(f"history {seed} ({told['kind']}): {'DIFFERS' if wrong else 'equal'}", flush=True)
    return failed


def pass_on(folder, pool, to):
    """Writes the histories that were received as streams again."""
    for seed, told in load(folder):
        history = History(to, pool, int(seed))
        for stream in told["streams"]:
            if history.kind == "bookmark" and "-i" in stream["send"]:
                history.send("-i", "@0", f"{history.top}@1")
                continue
            words = [word.replace(word.split("/")[0], pool, 1) if "/" in word else word for word in stream["send"]]
            if history.kind == "package":
                if "-I" in words:
                    history.send("-R", f"{history.top}@3")
                continue
            history.send(*words, receive=stream["receive"])
        if told["kind"] == "raw":
            with open(os.path.join(folder, seed, "key"), "rb") as key, open(os.path.join(history.folder, "key"), "wb") as copy:
                copy.write(key.read())
        history.write(told["manifests"])


if __name__ == "__main__":
    verb, folder, pool, *rest = sys.argv[1:]
    if verb == "make":
        for seed in rest:
            History(folder, pool, int(seed)).make()
    elif verb == "pass":
        pass_on(folder, pool, *rest)
    else:
        sys.exit(take(folder, pool) != 0)
