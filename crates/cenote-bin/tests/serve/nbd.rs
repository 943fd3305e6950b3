//! Volumes over NBD, with real clients; and clients that violate the protocol.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use cenote_serve::nbd::options::{InfoRequest, MetaRequest, OptionKind, encode_option};
use cenote_serve::nbd::wire::{Command as Request, Request as Wire, request_flag};

use super::{Serving, Shed, has, succeeds};

const VOLUME: u64 = 64 << 20;

/// A pool with volumes `t/v` and `t/w` and a snapshot of the first.
pub(crate) fn shed(stem: &str) -> Shed {
    let shed = Shed::new(stem);
    let size = VOLUME.to_string();
    shed.zfs(&["create", "-V", &size, "-b", "16K", "t/v"]);
    shed.zfs(&["create", "-V", &size, "-s", "t/w"]);
    shed.zfs(&["snapshot", "t/v@empty"]);
    shed
}

/// Serves the volumes on a socket `s`.
fn serve(shed: &Shed) -> Serving {
    let (folder, socket) = (shed.pool(), shed.text("s"));
    shed.serve(&["nbd", "-d", &folder, "--socket", &socket, "t"])
}

fn locator(shed: &Shed, name: &str) -> String {
    format!("nbd+unix:///{name}?socket={}", shed.text("s"))
}

/// Returns bytes with holes and incompressible data.
fn image(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = vec![0; len];
    for (index, block) in bytes.chunks_mut(100_000).enumerate() {
        if index % 3 != 0 {
            for byte in block {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        }
    }
    bytes
}

#[test]
fn nbd_serves_libnbd() {
    if !has("nbdinfo") || !has("nbdcopy") {
        return;
    }
    let shed = shed("nbd-libnbd");
    let serving = serve(&shed);
    assert!(serving.text.contains(&locator(&shed, "t/v@empty")), "{}", serving.text);
    let info = |words: &[&str]| succeeds(Command::new("nbdinfo").args(words));
    let listed = info(&["--list", "--json", &locator(&shed, "")]);
    for name in ["\"t/v\"", "\"t/w\"", "\"t/v@empty\""] {
        assert!(listed.contains(name), "{listed}");
    }
    assert_eq!(info(&["--size", &locator(&shed, "t/v")]).trim(), VOLUME.to_string());
    let said = info(&["--json", &locator(&shed, "t/v")]);
    for wanted in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"base:allocation\"",
        "\"can_multi_conn\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_df\": true",
        "\"block_size_preferred\": 16384",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let snapshot = info(&["--json", &locator(&shed, "t/v@empty")]);
    assert!(snapshot.contains("\"is_read_only\": true"), "{snapshot}");
    let missing = Command::new("nbdinfo").arg(locator(&shed, "t/none")).output().unwrap();
    assert!(!missing.status.success());

    let (from, back) = (shed.path("image"), shed.path("back"));
    let bytes = image(VOLUME as usize);
    fs::write(&from, &bytes).unwrap();
    let copy = |from: &str, to: &str| {
        succeeds(Command::new("nbdcopy").args(["--flush", "--connections=4", from, to]));
    };
    copy(from.to_str().unwrap(), &locator(&shed, "t/v"));
    copy(&locator(&shed, "t/v"), back.to_str().unwrap());
    assert!(fs::read(&back).unwrap() == bytes, "by nbdcopy");
    let map = info(&["--map", &locator(&shed, "t/v")]);
    assert!(map.contains("hole") && map.contains("data"), "{map}");
    let empty = info(&["--map", &locator(&shed, "t/v@empty")]);
    assert!(empty.contains("hole") && !empty.contains("data"), "{empty}");
    serving.stop();
    assert!(!shed.path("s").exists());
    // All clients read the same bytes.
    let folder = shed.pool();
    let output = shed.cenote(&["cat", "-d", &folder, "t/v"]).output().unwrap();
    assert!(output.stdout == bytes, "by cat");
    shed.judge();
}

#[test]
fn nbd_serves_qemu() {
    if !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let shed = shed("nbd-qemu");
    let serving = serve(&shed);
    let (raw, at) = (shed.path("image.raw"), locator(&shed, "t/v"));
    fs::write(&raw, image(40 << 20)).unwrap();
    let (raw, qcow) = (raw.to_str().unwrap(), shed.text("image.qcow2"));
    let img = |words: &[&str]| succeeds(Command::new("qemu-img").args(words));
    img(&["convert", "-f", "raw", "-O", "qcow2", raw, &qcow]);
    img(&["convert", "-n", "-f", "qcow2", "-O", "raw", &qcow, &at]);
    // Longer than the image: zeros after it.
    img(&["compare", "-f", "qcow2", "-F", "raw", &qcow, &at]);
    let io = |locator: &str, commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        succeeds(Command::new("qemu-io").args(["-f", "raw"]).args(commands).arg(locator))
    };
    let said = io(
        &at,
        &[
            "write -P 0xcd 1000000 777777",
            "read -P 0xcd 1000000 777777",
            "write -f -P 0x11 0 512",
            "write -z 1100000 300000",
            "write -z -u 2M 1M",
            "discard 4M 1M",
            "flush",
            "read -P 0 1100000 300000",
            "read -P 0 2M 1M",
            "read -P 0 4M 1M",
            "read -P 0x11 0 512",
            "read -P 0xcd 1000000 100000",
            "aio_write -P 0x22 8M 1M",
            "aio_write -P 0x33 9M 1M",
            "aio_flush",
            "read -P 0x22 8M 1M",
            "read -P 0x33 9M 1M",
        ],
    );
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    let refused = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 512"])
        .arg(locator(&shed, "t/v@empty"))
        .output()
        .unwrap();
    assert!(!refused.status.success() || !refused.stderr.is_empty(), "{refused:?}");
    serving.stop();
    shed.judge();
}

#[test]
fn nbd_flushed_data_survives_a_kill() {
    if !has("qemu-io") {
        return;
    }
    let shed = shed("nbd-kill");
    let at = locator(&shed, "t/v");
    let io = |commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let said = succeeds(Command::new("qemu-io").args(["-f", "raw"]).args(commands).arg(&at));
        assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    };
    for round in 1..4u32 {
        let serving = serve(&shed);
        for earlier in 1..round {
            io(&[
                &format!("read -P {earlier} {earlier}M 700000"),
                &format!("read -P {} {}M 4096", earlier + 16, earlier + 20),
                &format!("read -P 0 {}M 65536", earlier + 40),
            ]);
        }
        io(&[
            &format!("write -P 99 {}M 65536", round + 40),
            &format!("write -P {round} {round}M 700000"),
            &format!("discard {}M 65536", round + 40),
            "flush",
            // Durable by itself (FUA).
            &format!("write -f -P {} {}M 4096", round + 16, round + 20),
        ]);
        serving.kill();
    }
    let serving = serve(&shed);
    io(&["read -P 3 3M 700000", "read -P 19 23M 4096"]);
    serving.stop();
    shed.judge();
}

#[test]
fn nbd_fio_verifies_its_writes() {
    if !has("fio") {
        return;
    }
    let engines = Command::new("fio").arg("--enghelp").output().unwrap();
    if !String::from_utf8_lossy(&engines.stdout).contains("nbd") {
        return cenote_testkit::skip::skip("nbd_fio_verifies_its_writes", "fio without nbd");
    }
    let shed = shed("nbd-fio");
    let folder = shed.pool();
    // By TCP, with several connections to one volume.
    let serving = shed.serve(&["nbd", "-d", &folder, "--listen", "127.0.0.1:0", "t"]);
    let address = serving.text.lines().last().unwrap().trim_start_matches("listening at ");
    let locator = format!("--uri=nbd://{address}/t/w");
    let said = succeeds(Command::new("fio").current_dir(shed.folder.path()).args([
        "--name=verify",
        "--ioengine=nbd",
        &locator,
        "--rw=randrw",
        "--bsrange=512-128k",
        "--size=32M",
        "--io_size=24M",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--randseed=7",
    ]));
    assert!(said.contains("err= 0"), "{said}");
    serving.stop();
    shed.judge();
}

/// A client that sends raw messages.
pub(crate) struct Raw(UnixStream);

impl Raw {
    pub(crate) fn connect(socket: &Path, flags: u32) -> Self {
        let mut raw = Self(UnixStream::connect(socket).unwrap());
        let greeting = raw.take(18);
        assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
        raw.0.write_all(&flags.to_be_bytes()).unwrap();
        raw
    }

    pub(crate) fn into_stream(self) -> UnixStream {
        self.0
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends an option, and returns the types of all replies.
    pub(crate) fn option(&mut self, kind: OptionKind, data: &[u8]) -> Vec<u32> {
        self.0.write_all(&encode_option(kind, data)).unwrap();
        let mut types = Vec::new();
        loop {
            let header = self.take(20);
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            assert_eq!(word(8), kind.number());
            self.take(word(16) as usize);
            types.push(word(12));
            if !matches!(word(12), 2..=4) {
                return types;
            }
        }
    }

    pub(crate) fn go(&mut self, name: &str) -> u32 {
        let info = InfoRequest { name: name.to_owned(), wanted: vec![1, 3] };
        *self.option(OptionKind::Go, &info.encode()).last().unwrap()
    }

    /// Sends a request, and returns the error of the answer: a simple one, or a single chunk.
    pub(crate) fn request(&mut self, command: Request, flags: u16, offset: u64, len: u32) -> u32 {
        let wire = Wire { command, flags, cookie: 77, offset, len };
        self.0.write_all(&wire.encode()).unwrap();
        if command == Request::Write {
            self.0.write_all(&vec![1; len as usize]).unwrap();
        }
        let start = self.take(4);
        if start == 0x6744_6698u32.to_be_bytes() {
            let rest = self.take(12);
            assert_eq!(rest[4..], 77u64.to_be_bytes());
            return u32::from_be_bytes(rest[..4].try_into().unwrap());
        }
        let rest = self.take(16);
        assert_eq!(rest[4..12], 77u64.to_be_bytes());
        let len = u32::from_be_bytes(rest[12..].try_into().unwrap());
        let payload = self.take(len as usize);
        match u16::from_be_bytes([rest[2], rest[3]]) {
            0x8001 => u32::from_be_bytes(payload[..4].try_into().unwrap()),
            _ => 0,
        }
    }

    fn is_left(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}

pub(crate) const OK: u32 = 1;
const UNSUPPORTED: u32 = 1 << 31 | 1;
const INVALID: u32 = 1 << 31 | 3;
pub(crate) const UNKNOWN: u32 = 1 << 31 | 6;
const TOO_BIG: u32 = 1 << 31 | 9;

#[test]
fn nbd_clients_that_violate_the_protocol() {
    let shed = shed("nbd-rules");
    let serving = serve(&shed);
    let meta = |name: &str, query: &str| {
        MetaRequest { name: name.to_owned(), queries: vec![query.to_owned()] }.encode()
    };
    let mut raw = Raw::connect(&shed.path("s"), 3);
    assert_eq!(raw.option(OptionKind::Unknown(4711), b"abc"), [UNSUPPORTED]);
    assert_eq!(raw.option(OptionKind::List, b"x"), [INVALID]);
    assert_eq!(raw.option(OptionKind::List, b""), [2, 2, 2, OK]);
    assert_eq!(raw.option(OptionKind::Go, b"\0\0"), [INVALID]);
    assert_eq!(raw.option(OptionKind::Go, &[0xff; 100]), [INVALID]);
    assert_eq!(raw.option(OptionKind::Info, &vec![0; 100_000]), [TOO_BIG]);
    assert_eq!(raw.go("t/none"), UNKNOWN);
    assert_eq!(raw.go("elsewhere/v"), UNKNOWN);
    assert_eq!(raw.go("t"), UNKNOWN, "a file system");
    assert_eq!(raw.go(""), UNKNOWN, "two volumes");
    let set = OptionKind::SetMetaContext;
    assert_eq!(raw.option(set, &meta("t/v", "base:allocation")), [INVALID], "too early");
    assert_eq!(raw.option(OptionKind::StructuredReply, b""), [OK]);
    assert_eq!(raw.option(OptionKind::ListMetaContext, &meta("t/v", "base:")), [4, OK]);
    assert_eq!(raw.option(set, &meta("t/v", "qemu:dirty-bitmap:x")), [OK]);
    assert_eq!(raw.option(set, &meta("t/w", "base:allocation")), [4, OK]);
    assert_eq!(raw.go("t/v"), OK);
    for (command, flags, offset, len, wanted) in [
        (Request::Read, 0, VOLUME - 512, 1024, 22),
        (Request::Read, 0, u64::MAX - 100, 1024, 22),
        (Request::Read, 0, 0, 64 << 20, 75),
        (Request::Read, 0, 0, 0, 0),
        (Request::Write, 0, VOLUME, 512, 28),
        (Request::WriteZeroes, 0, VOLUME, 512, 28),
        (Request::WriteZeroes, request_flag::NO_HOLE | request_flag::FAST_ZERO, 0, 512, 95),
        (Request::Trim, 0, VOLUME, 512, 22),
        (Request::Flush, request_flag::FUA, 0, 0, 22),
        (Request::Unknown(8), 0, 0, 0, 22),
        (Request::BlockStatus, 0, 0, 4096, 22),
        (Request::Write, request_flag::FUA, 5, 3, 0),
        (Request::Cache, 0, 0, 4 << 20, 0),
        (Request::Flush, 0, 0, 0, 0),
    ] {
        let found = raw.request(command, flags, offset, len);
        assert_eq!(found, wanted, "{command:?} {flags} {offset} {len}");
    }
    raw.0.write_all(&[0x55; 28]).unwrap();
    assert!(raw.is_left(), "no request");

    // The old way, without chunks; and unknown flags.
    let mut raw = Raw::connect(&shed.path("s"), 1);
    raw.0.write_all(&encode_option(OptionKind::ExportName, b"t/v@empty")).unwrap();
    let said = raw.take(8 + 2 + 124);
    assert_eq!(said[..8], VOLUME.to_be_bytes());
    assert_eq!(raw.request(Request::Write, 0, 0, 512), 1, "read only");
    assert_eq!(raw.request(Request::Read, request_flag::DF, 0, 512), 22, "without chunks");
    let wire = Wire { command: Request::Write, flags: 0, cookie: 0, offset: 0, len: 33 << 20 };
    raw.0.write_all(&wire.encode()).unwrap();
    assert!(raw.is_left(), "too long");
    assert!(Raw::connect(&shed.path("s"), 0xff).is_left());
    let mut raw = Raw::connect(&shed.path("s"), 3);
    raw.0.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(raw.is_left(), "somebody else");
    // A silent client does not delay the end.
    let _silent = Raw::connect(&shed.path("s"), 3);
    serving.stop();
    shed.judge();
}

#[test]
fn nbd_volsize_change_is_visible_to_new_clients() {
    if !has("nbdinfo") {
        return;
    }
    let shed = shed("nbd-size");
    let size = |shed: &Shed| {
        let serving = serve(shed);
        let said = succeeds(Command::new("nbdinfo").args(["--size", &locator(shed, "t/w")]));
        serving.stop();
        said.trim().parse::<u64>().unwrap()
    };
    assert_eq!(size(&shed), VOLUME);
    shed.zfs(&["set", &format!("volsize={}", 2 * VOLUME), "t/w"]);
    assert_eq!(size(&shed), 2 * VOLUME);
    shed.judge();
}

/// Clients that never select an export, more than the server has places, keep no other client out.
#[test]
fn nbd_clients_without_an_export_keep_nobody_out() {
    let shed = shed("nbd-silent");
    let serving = serve(&shed);
    let mut working = Raw::connect(&shed.path("s"), 3);
    assert_eq!(working.go("t/v"), OK);
    let mut others = Vec::new();
    for round in 0..600 {
        let mut stream = UnixStream::connect(shed.path("s")).unwrap();
        // Some are silent, and some send options that the server does not know.
        if round % 2 == 0 {
            stream.write_all(&3u32.to_be_bytes()).unwrap();
            stream.write_all(&encode_option(OptionKind::Unknown(4711), b"abc")).unwrap();
        }
        others.push(stream);
    }
    let mut raw = Raw::connect(&shed.path("s"), 3);
    assert_eq!(raw.option(OptionKind::Unknown(4711), b"abc"), [UNSUPPORTED]);
    assert_eq!(raw.go("t/v"), OK);
    for client in [&mut raw, &mut working] {
        assert_eq!(client.request(Request::Write, 0, 4096, 4096), 0);
        assert_eq!(client.request(Request::Flush, 0, 0, 0), 0);
    }
    // The oldest ones were disconnected.
    let mut first = Raw(others.swap_remove(0));
    first.take(18);
    while !first.is_left() {}
    drop(others);
    serving.stop();
    shed.judge();
}
