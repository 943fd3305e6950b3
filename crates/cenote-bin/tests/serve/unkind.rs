//! Clients that are slow, blocked, half open, endless or huge, concurrently with others.
//!
//! As root the unkind clients are other users, by the uid with which their threads connect;
//! otherwise they are the daemon's own user, and shares are not tested.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_testkit::golden::golden;
use cenote_testkit::rng::wants_all;
use cenote_testkit::skip;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use rustix::thread::set_thread_res_uid;

use crate::daemon::House;
use crate::succeeds;

/// Uids of users without names.
const UNKIND: u32 = 54_322;
const OTHER: u32 = 54_323;
/// Commands of one other user that the daemon runs at a time.
const EACH: usize = 32;
/// These, with inherited properties of 8,000 bytes each, are more than a socket buffers.
const DATASETS: usize = 5;
const PROPERTIES: usize = 10;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Connects as a user.
fn connect(socket: &Path, uid: u32) -> UnixStream {
    try_connect(socket, uid).unwrap()
}

fn try_connect(socket: &Path, uid: u32) -> std::io::Result<UnixStream> {
    let socket = socket.to_owned();
    // The credentials are those of the thread.
    let connected = std::thread::spawn(move || {
        if is_root() {
            let uid = rustix::process::Uid::from_raw(uid);
            set_thread_res_uid(
                None::<rustix::process::Uid>,
                Some(uid),
                None::<rustix::process::Uid>,
            )
            .unwrap();
        }
        UnixStream::connect(socket)
    });
    connected.join().unwrap()
}

/// Returns the request of a command.
pub(crate) fn request(line: &str) -> Vec<u8> {
    let words: Vec<&str> = std::iter::once("/").chain(line.split(' ')).collect();
    let mut body = [0_u32.to_le_bytes(), (words.len() as u32).to_le_bytes()].concat();
    for word in words {
        body.extend((word.len() as u32).to_le_bytes());
        body.extend(word.as_bytes());
    }
    [b"cen4", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// Returns the shortest time of three runs of a command that must succeed.
fn time_of(house: &House, line: &str) -> Duration {
    let time = || {
        let begun = now();
        house.run(line);
        begun.elapsed()
    };
    (0..3).map(|_| time()).min().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "how long a command really takes")]
fn now() -> Instant {
    Instant::now()
}

/// Waits until a condition holds.
#[expect(clippy::disallowed_methods, reason = "what another process does is waited for")]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = now() + Duration::from_mins(1);
    while !is_so() {
        assert!(now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Returns the numbers of threads and descriptors of the daemon.
fn use_of(house: &House) -> (usize, usize) {
    let pid = house.pid();
    let names = |path: PathBuf| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // The number of runtime threads varies.
    let threads = threads.filter(|entry| {
        let name = names(entry.as_ref().unwrap().path());
        ["command", "metrics", "caller"].contains(&name.trim())
    });
    (threads.count(), entries(&format!("/proc/{pid}/fd")))
}

/// A pool with more properties than a socket buffers.
fn talkative(stem: &str) -> House {
    let house = House::new(stem);
    house.create("none");
    for number in 0..DATASETS {
        house.run(&format!("zfs create t/{number}"));
    }
    let text = "x".repeat(8000);
    let values: Vec<String> = (0..PROPERTIES).map(|number| format!("my:{number}={text}")).collect();
    house.run(&format!("zfs set {} t", values.join(" ")));
    house
}

const LONG: &str = "zfs get -Hp all";

#[test]
fn misbehaving_clients_do_not_affect_root() {
    if !is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = talkative("unkind-others");
    let socket = house.path("state/control.sock");
    let commands = ["zpool list", "zfs list -t all", "zpool status t", "daemon status"];
    let unloaded = commands.map(|line| time_of(&house, line)).into_iter().max().unwrap();
    let before = use_of(&house);

    let unkind = Unkind::start(&socket);
    // The share is used up: another client is told to wait.
    wait_until("a share that is used up", || {
        let mut answer = [0];
        let mut stream = connect(&socket, UNKIND);
        stream.write_all(&request("zpool list")).is_ok()
            && stream.read(&mut answer).is_ok_and(|count| count == 1)
            && answer == *b"b"
    });
    let bound = Duration::from_secs(1).max(5 * unloaded);
    for line in commands {
        let time = time_of(&house, line);
        assert!(time < bound, "{line}: {time:?} instead of {unloaded:?}");
    }
    // Another user is not affected.
    let mut stream = connect(&socket, OTHER);
    stream.write_all(&request("zpool list")).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    assert!(answers.starts_with(b"a\0\0\0\0o"), "{:?}", answers.get(..20));
    // Blocked readers hold nothing of the pool.
    let folder = house.text("pool");
    house.run("zpool export t");
    house.run(&format!("zpool import -d {folder} t"));

    // They run into their deadline, and nothing remains.
    house.run("tunable set cenote_client_timeout=1");
    unkind.stop();
    wait_until("the daemon's threads and descriptors", || {
        let after = use_of(&house);
        after.0 <= before.0 && after.1 <= before.1 + 4
    });
    let unkind = Unkind::start(&socket);
    house.run("daemon stop");
    unkind.stop();
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &folder, "t"]));
}

/// Misbehaving clients of one user.
struct Unkind {
    streams: Vec<UnixStream>,
    is_over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Unkind {
    fn start(socket: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut unkind = Self { streams: Vec::new(), is_over, threads: Vec::new() };
        // Commands whose output is not read.
        for _ in 0..EACH / 2 {
            let mut stream = connect(socket, UNKIND);
            stream.write_all(&request(LONG)).unwrap();
            unkind.streams.push(stream);
        }
        // No request, or half of a header.
        for sent in [&b""[..], b"cen", b"cen4"] {
            for _ in 0..EACH / 8 {
                let mut stream = connect(socket, UNKIND);
                let _ = stream.write_all(sent);
                unkind.streams.push(stream);
            }
        }
        unkind.streams.push(with_descriptors(socket));
        unkind.keep_sending(socket, b"c");
        unkind.keep_sending(socket, &[request("zpool list"), vec![b'x'; 1 << 16]].concat());
        let endless = [&b"cen4"[..], &(4_u32 << 20).to_le_bytes(), &[0; 1 << 10]].concat();
        unkind.keep_sending(socket, &endless);
        unkind
    }

    /// Sends these bytes again and again, slowly, over new connections.
    #[expect(clippy::disallowed_methods, reason = "a client that is slow")]
    fn keep_sending(&mut self, socket: &Path, bytes: &[u8]) {
        let (socket, bytes, is_over) =
            (socket.to_owned(), bytes.to_vec(), Arc::clone(&self.is_over));
        self.threads.push(std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let Ok(mut stream) = try_connect(&socket, UNKIND) else { return };
                let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
                while stream.write_all(&bytes).is_ok() && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }));
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Sends many descriptors of all kinds with the first byte of a request.
fn with_descriptors(socket: &Path) -> UnixStream {
    let stream = connect(socket, UNKIND);
    let (one, other) = UnixStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let kinds = [one.as_fd(), other.as_fd(), null.as_fd(), reader.as_fd(), writer.as_fd()];
    let many: Vec<_> = kinds.into_iter().cycle().take(250).collect();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
    sendmsg(&stream, &[IoSlice::new(b"c")], &mut control, SendFlags::NOSIGNAL).unwrap();
    stream
}

#[test]
fn blocked_reader_of_output_holds_no_pool() {
    let house = talkative("unkind-reader");
    let wanted = house.run(LONG);
    assert!(wanted.len() > DATASETS * PROPERTIES * 8000, "{}", wanted.len());
    let before = use_of(&house).0;
    let words: Vec<&str> = LONG.split(' ').collect();
    let mut blocked: Vec<_> =
        (0..4).map(|_| house.command(&words).stdout(Stdio::piped()).spawn().unwrap()).collect();
    let mut watching = house.command(&["zpool", "iostat", "-v", "t", "0.1"]);
    let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = [0];
    watching.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    // Their commands have ended, although the output is not read.
    wait_until("commands that end", || use_of(&house).0 <= before + 1);
    house.run("zfs destroy t/0");
    let folder = house.text("pool");
    house.run("zpool export t");
    house.run(&format!("zpool import -d {folder} t"));
    drop(watching.stdout.take());
    assert_eq!(watching.wait().unwrap().code(), Some(141));
    wait_until("the one that goes on", || use_of(&house).0 <= before);
    house.run("daemon stop");
    for child in &mut blocked {
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(said == wanted, "what was read late is what was there");
    }
}

#[test]
fn failed_output_sets_the_exit_status() {
    let house = talkative("unkind-outputs");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = house.command(&["zpool", "list"]).stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with("cannot write output: No space left on device"), "{said}");
    for line in ["zpool list", LONG] {
        let words: Vec<&str> = line.split(' ').collect();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = house.command(&words).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(141), Vec::new()), "{line}");
    }
    // Output of both streams arrives in the order of writing.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = house.command(&["zfs", "list", "-H", "-o", "name", "t", "t/no", "t/1"]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let status = command.status().unwrap();
    drop(command);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    let wanted = "cannot open 't/no': dataset does not exist\nt\nt/1\n";
    assert_eq!((status.code(), said.as_str()), (Some(1), wanted));
}

#[test]
fn load_key_reads_the_callers_input() {
    let Some(golden) = golden("g-crypt") else { return };
    let house = House::new("unkind-keys");
    let images = golden.images();
    let images = images.to_str().unwrap();
    house.run(&format!("zpool import -d {images} -f -N -o readonly=on g-crypt"));
    let load = |key: &str, dataset: &str| {
        let key = std::fs::File::open(golden.key_file(key)).unwrap();
        let mut command = house.command(&["zfs", "load-key", "-L", "prompt", dataset]);
        let output = command.stdin(key).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(load("pass", "g-crypt/gcm"), (Some(0), String::new()));
    assert_eq!(load("raw", "g-crypt/raw"), (Some(0), String::new()));
    let (status, said) = load("raw", "g-crypt/ccm");
    assert!(status == Some(255) && said.starts_with("Key load error: "), "{said}");
    assert_eq!(load("hex", "g-crypt/ccm"), (Some(0), String::new()));
    let line = "zfs get -H -o value keystatus g-crypt/gcm g-crypt/raw g-crypt/ccm";
    assert_eq!(house.run(line), "available\navailable\navailable\n");
    house.run("zpool export g-crypt");
}

#[test]
fn request_is_run_once_or_sent_again() {
    let house = House::new("unkind-once");
    std::fs::create_dir(house.path("state")).unwrap();
    let socket = house.path("state/control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // A daemon that dies before it accepts the request, one that is stopping, one that is busy, and
    // one that dies after accepting it.
    let daemon = std::thread::spawn(move || {
        let mut seen = 0;
        for answer in [&b""[..], b"x\0\0\0\0", b"b\x02\0\0\0no", b"a\0\0\0\0e\x03\0\0\0one"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut header = [0; 8];
            stream.read_exact(&mut header).unwrap();
            let length = u32::from_le_bytes(header[4..].try_into().unwrap());
            let mut body = vec![0; length as usize];
            stream.read_exact(&mut body).unwrap();
            stream.write_all(answer).unwrap();
            seen += 1;
        }
        listener.set_nonblocking(true).unwrap();
        (seen, listener.accept().is_err())
    });
    let output = house.command(&["zfs", "create", "t/a"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let wanted = "onecannot reach the cenote daemon: it ended while it ran the command\n";
    assert_eq!((output.status.code(), said.as_str()), (Some(1), wanted));
    assert_eq!(daemon.join().unwrap(), (4, true));
    std::fs::remove_file(socket).unwrap();
}

#[test]
fn starting_daemon_answers() {
    let house = House::new("unkind-start");
    house.create("none");
    let pid = || Pid::from_raw(house.pid()).unwrap();
    for round in 0..if wants_all() { 100 } else { 6 } {
        let signal = if round % 3 == 2 { Signal::TERM } else { Signal::KILL };
        kill_process(pid(), signal).unwrap();
        if round % 2 == 0 {
            let starters = ["start", "start", "start"];
            let starters: Vec<_> =
                starters.map(|verb| house.command(&["daemon", verb]).spawn().unwrap()).into();
            for mut starter in starters {
                assert!(starter.wait().unwrap().success(), "round {round}");
            }
            // Only one that ends by SIGTERM may answer once more.
            if signal == Signal::KILL {
                assert!(house.run("daemon status").starts_with("running"), "round {round}");
            }
        }
        assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\n", "round {round}");
    }
    // A daemon that was about to end may have answered the last one.
    wait_until("the end", || {
        let is_stopped = house.command(&["daemon", "stop"]).status().unwrap().success();
        is_stopped || house.run("zpool list").is_empty()
    });
}

#[test]
fn root_is_served_when_descriptors_run_out() {
    if !is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("unkind-descriptors");
    house.create("none");
    house.run("zpool list");
    let open = entries(&format!("/proc/{}/fd", house.pid())) as u64;
    let limit = Rlimit { current: Some(open + 8), maximum: Some(open + 8) };
    prlimit(Pid::from_raw(house.pid()), Resource::Nofile, limit).unwrap();
    let socket = house.path("state/control.sock");
    let waiting: Vec<_> = (0..EACH / 2).map(|_| connect(&socket, UNKIND)).collect();
    for _ in 0..3 {
        assert_eq!(house.run("zpool list -H -o name"), "t\n");
    }
    house.run("daemon stop");
    drop(waiting);
}

#[test]
fn metrics_socket_has_shares_for_each_user() {
    if !is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("unkind-metrics");
    house.run("zpool list");
    let socket = house.path("state/metrics.sock");
    let waiting: Vec<_> = (0..3 * EACH).map(|_| connect(&socket, UNKIND)).collect();
    let mut stream = connect(&socket, 0);
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    drop(waiting);
}

/// A list of properties is chosen by the caller: neither its length nor that of the table takes more
/// of the daemon's memory than the caller's share.
#[test]
fn long_lists_of_properties_take_little_memory() {
    let house = House::new("unkind-lists");
    house.create("none");
    house.run("zfs snapshot t@one");
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", house.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = resident();
    let socket = house.path("state/control.sock");
    let list = vec!["guid"; 300_000].join(",");
    let pools = vec!["t"; 300_000].join(" ");
    let orders = vec!["-s guid"; 2000].join(" ");
    for (line, wanted) in [
        (format!("zfs get -Hp -t all {list}"), "300000 properties, at most 1024"),
        (format!("zfs get -j -t all {list}"), "300000 properties, at most 1024"),
        (format!("zfs list -o {list}"), "300000 properties, at most 1024"),
        (format!("zpool list -o {list}"), "300000 properties, at most 1024"),
        (format!("zpool get {list} t"), "300000 properties, at most 1024"),
        (format!("zfs list {orders}"), "2000 properties, at most 1024"),
        (format!("zpool list -H -o name {pools}"), "o\u{2}\0\0\0t\n"),
        (format!("zpool status {pools}"), "errors: No known data errors"),
    ] {
        let mut stream = connect(&socket, UNKIND);
        stream.write_all(&request(&line)).unwrap();
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        let text = String::from_utf8_lossy(&answers);
        let head: String = text.chars().take(200).collect();
        assert!(text.contains(wanted), "{}: {head}", line.get(..30).unwrap_or_default());
    }
    let more = resident() - before;
    assert!(more < 200 << 10, "{more} KiB");
    house.run("zpool export t");
}

/// Clients that disconnect without a request leave no lines in the log.
#[test]
fn clients_without_a_request_are_not_logged() {
    let house = House::new("unkind-log");
    house.run("zpool list");
    let socket = house.path("state/control.sock");
    let log = || std::fs::metadata(house.path("state/daemon.log")).unwrap().len();
    let before = log();
    for sent in [&b""[..], b"cen", b"GET / HTTP/1.1\r\n\r\n"] {
        for _ in 0..100 {
            let mut stream = connect(&socket, UNKIND);
            // The daemon may have closed the connection already.
            let _ = stream.write_all(sent);
        }
    }
    house.run("daemon stop");
    let written = log() - before;
    assert!(written < 2000, "{written} bytes");
}
