//! The daemon: imports pools, and runs commands on them.
//!
//! ```text
//!   cenote zfs list ──socket: arguments, folder──> daemon ──> cenote_cli::run_for
//!                   <────── output, status ───────
//! ```
//!
//! `zpool` and `zfs` without `--embedded` send their commands to the daemon, and start it if
//! necessary. It records its pools, opens them again when it starts, and can be killed at any time:
//! acknowledged changes are on disk. A lock permits one daemon for each state directory, and
//! devices are locked, so that two daemons never open the same pool.

mod absent;
mod accept;
mod client;
mod connections;
mod exports;
mod follow;
mod host_space;
mod lines;
mod loan;
mod log;
mod mounts;
mod person;
mod place;
mod pools;
mod record;
mod rollback;
mod server;
mod silence;
mod spares;
mod spool;
mod streams;
mod wanted;
mod watch;
mod wire;
mod zedlets;

use std::fs::File;
use std::io::{ErrorKind, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use cenote_cli::environment;
use cenote_rt::{Runtime, stages};
use cenote_serve::{Signals, fuse};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, flock, memfd_create};
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, getpid, getrlimit, pidfd_getfd, pidfd_open, setrlimit,
};

use accept::SpareDescriptors;
use place::Place;
use pools::Pools;
use server::Commands;
use silence::Silence;
use wire::Request;

const USAGE: &str = "\
usage: cenote daemon [start|stop|status|run]
  start   starts it in the background (commands do that, too)
  stop    ends it: what is mounted is unmounted, pools stay imported and come back with it
  status  says whether it runs, and its pools, mounts, exports and memory
  run     runs it here, until SIGTERM, SIGINT or SIGHUP
It keeps what it remembers in CENOTE_STATE_DIR and listens on CENOTE_SOCKET. Volumes with
'cenote:nbd=on' are served on nbd.sock there, and at CENOTE_NBD_LISTEN (HOST:PORT), encrypted with
the certificate in CENOTE_NBD_TLS_CERTIFICATES.
CENOTE_LOG (error, warn, info, debug, trace, off, or levels of targets) says what it logs.
";

/// Beginning of the line with the reason why a daemon did not start.
const FAILURE: &str = "cenote daemon: ";

/// Argument of a daemon that a command starts.
const DETACHED: &str = "--detached";

/// How long a daemon that a command starts waits for the end of its predecessor.
const LOCK_TIMEOUT: Duration = Duration::from_secs(50);
/// Interval of attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Name of the link to this program that `mount -t zfs` runs.
const MOUNT_HELPER: &str = "mount.zfs";

/// Names of links to this program that have verbs of their own.
const TOOLS: [&str; 5] = ["zpool", "zfs", "zdb", "zinject", "zstream"];

/// Verbs that use no pools of the daemon.
const LOCAL_VERBS: [&str; 8] =
    ["version", "help", "-V", "--version", "-?", "--help", "-h", "labelclear"];

/// Returns the name under which this program was started, without its folder.
fn invoked(args: &[std::ffi::OsString]) -> Option<String> {
    let program = args.first()?.to_string_lossy();
    program.rsplit('/').next().map(str::to_owned)
}

/// Runs a command of the daemon or for it; returns `None` for commands of this process.
pub(crate) fn run(args: &[std::ffi::OsString]) -> Option<ExitCode> {
    let invoked = invoked(args)?;
    let words = if matches!(&*invoked, "zpool" | "zfs" | "zinject" | MOUNT_HELPER) {
        args
    } else {
        args.get(1..)?
    };
    let tool = words.first()?.to_string_lossy();
    let tool = tool.rsplit('/').next().unwrap_or_default().to_owned();
    let verb = words.get(1).map(|verb| verb.to_string_lossy().into_owned());
    match (&*tool, verb.as_deref()) {
        ("help", Some("daemon")) => Some(daemon(Some("help"), false)),
        ("daemon", verb) => {
            let is_detached = words.get(2).is_some_and(|word| *word == *DETACHED);
            if is_detached {
                detach();
            }
            Some(daemon(verb, is_detached))
        }
        ("zpool" | "zfs", Some(verb)) if is_for_daemon(verb) => {
            let args: Vec<_> =
                words[1..].iter().map(|word| cenote_cli::argument::from_os(word)).collect();
            (!cenote_cli::needs_no_pool(&tool, &args)).then(|| pass(&tool, words))
        }
        // The device may be one that a pool of the daemon does not use at the moment.
        ("zpool", Some("labelclear")) if words.iter().any(|word| *word == *"-f") => {
            pass_to_running(&tool, words)
        }
        (MOUNT_HELPER, _) => Some(pass(&tool, words)),
        ("zinject", _) if words.get(1).is_none_or(|word| *word != *"-h" && *word != *"--help") => {
            Some(pass(&tool, words))
        }
        ("map", _) if !words.iter().any(|word| reads_files(&word.to_string_lossy())) => {
            Some(map(words))
        }
        ("trace" | "tunable", _) if words.iter().any(|word| *word == *"--help") => None,
        ("trace", _) => Some(pass(&tool, words)),
        ("tunable", verb) if verb.is_none_or(is_for_daemon) => Some(pass(&tool, words)),
        _ => None,
    }
}

/// Whether a verb uses pools of the daemon.
fn is_for_daemon(verb: &str) -> bool {
    verb != "--embedded" && !LOCAL_VERBS.contains(&verb)
}

/// Whether an option names files of a pool that is not imported, or asks for help.
fn reads_files(word: &str) -> bool {
    word == "--help" || ["-d", "-p", "-k"].iter().any(|option| word.starts_with(option))
}

/// Runs a command in the daemon.
fn pass(tool: &str, words: &[std::ffi::OsString]) -> ExitCode {
    let passed = || {
        let place = Place::of_environment().ok_or_else(no_place)?;
        client::run_or_start(&place, &request(tool, words)?)
    };
    exit_code(passed())
}

/// Runs `map` in the daemon. This process writes the file of a picture, with its own rights.
fn map(words: &[std::ffi::OsString]) -> ExitCode {
    let args: Vec<_> =
        words.iter().skip(1).map(|word| cenote_cli::argument::from_os(word)).collect();
    let Some(command) = cenote_cli::map_picture_command(&args) else { return pass("map", words) };
    let words: Vec<_> =
        ["map".to_owned()].into_iter().chain(command.args).map(Into::into).collect();
    let drawn = || {
        let place = Place::of_environment().ok_or_else(no_place)?;
        let mut picture: File = memfd_create("picture", MemfdFlags::CLOEXEC)?.into();
        let status = client::run_or_start_into(&place, &request("map", &words)?, &picture)?;
        picture.rewind()?;
        Ok((status, picture))
    };
    match drawn() {
        Ok((0, mut picture)) => {
            let copied = File::create(&command.file)
                .and_then(|mut file| std::io::copy(&mut picture, &mut file));
            let Err(error) = copied else { return ExitCode::SUCCESS };
            let why = cenote_cli::io::words(&error);
            eprintln!("cannot write {}: {why}", command.file.display());
            ExitCode::FAILURE
        }
        other => exit_code(other.map(|(status, _)| status)),
    }
}

/// Runs a command in the daemon if one runs.
fn pass_to_running(tool: &str, words: &[std::ffi::OsString]) -> Option<ExitCode> {
    let place = Place::of_environment()?;
    let passed = request(tool, words).and_then(|request| client::run(&place, &request));
    passed.transpose().map(exit_code)
}

fn request(tool: &str, words: &[std::ffi::OsString]) -> std::io::Result<Request> {
    let mut args = vec![tool.into()];
    args.extend_from_slice(words.get(1..).unwrap_or_default());
    let (environment, folder) = (environment::own(), std::env::current_dir()?);
    Ok(Request { environment, folder, args })
}

/// Returns the arguments of a command that reads devices in this process: those of a pool that the
/// daemon has are added.
///
/// # Errors
/// The message for a pool of the daemon that it does not lend.
pub(crate) fn with_loan(args: Vec<std::ffi::OsString>) -> Result<Vec<std::ffi::OsString>, String> {
    if invoked(&args).is_some_and(|invoked| TOOLS.contains(&&*invoked)) {
        return Ok(args);
    }
    match loan::borrow(args.get(1..).unwrap_or_default()) {
        Ok(None) => Ok(args),
        Ok(Some(more)) => Ok(args.into_iter().take(1).chain(more).collect()),
        Err(error) => Err(format!("cannot reach the cenote daemon: {error}")),
    }
}

fn exit_code(passed: std::io::Result<i32>) -> ExitCode {
    match passed {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(error) => {
            eprintln!("cannot reach the cenote daemon: {error}");
            ExitCode::FAILURE
        }
    }
}

fn no_place() -> std::io::Error {
    std::io::Error::other("neither CENOTE_STATE_DIR nor HOME says where it keeps its state")
}

fn daemon(verb: Option<&str>, is_detached: bool) -> ExitCode {
    if let Some("help" | "--help" | "-h") = verb {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(place) = Place::of_environment() else {
        eprintln!("{}", no_place());
        return ExitCode::FAILURE;
    };
    let done = match verb {
        // Answered by a running daemon, which proves that there is one.
        Some("start") => client::run_or_start(&place, &Request::of_daemon("ping")).map(drop),
        Some("stop") => client::stop(&place),
        Some("status") | None => match client::run(&place, &Request::of_daemon("status")) {
            Ok(None) => {
                println!("not running");
                return ExitCode::FAILURE;
            }
            done => done.map(drop),
        },
        Some("run") => serve(&place, is_detached),
        Some(_) => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{FAILURE}{error}");
            ExitCode::FAILURE
        }
    }
}

/// Closes everything inherited from the command that started this process: otherwise a script that
/// reads the command's output would wait forever, and signals of its terminal would end the daemon.
/// To be called before anything is opened.
fn detach() {
    const STDERR: i32 = 2;
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    // The directory of descriptors is among them, and is closed before.
    let numbers: Vec<i32> = numbers.filter(|number| *number > STDERR).collect();
    for number in numbers {
        let _ = nix::unistd::close(number);
    }
    let _ = rustix::process::setsid();
}

/// Takes the lock of the state directory; returns `None` if a running daemon has it and answers,
/// and this one was started by a command. The predecessor may still be stopping.
///
/// # Errors
/// A daemon has the lock and does not answer, or this one was started explicitly. Nothing of that
/// daemon is changed: neither its socket, nor the contents of the lock file.
#[expect(clippy::disallowed_methods, reason = "before there is a runtime")]
fn take_lock(place: &Place, is_detached: bool) -> std::io::Result<Option<File>> {
    // Readable for its user only: a user who can open the file can lock it, and block every daemon.
    let mut options = File::options();
    let lock = options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let mut lock = lock.open(place.lock())?;
    lock.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    let end = cenote_rt::monotonic() + LOCK_TIMEOUT;
    let mut silence = client::daemon_process(place).trim().parse().ok().map(Silence::of);
    // LOCK: held until the process ends; the kernel releases it after a kill.
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if is_detached {
            match client::run(place, &Request::of_daemon("ping")) {
                Ok(Some(0)) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
                // The daemon may be stopping.
                _ => {}
            }
            silence.as_mut().map_or(Ok(()), Silence::check)?;
        }
        if !is_detached || cenote_rt::monotonic() > end {
            let text = "another daemon runs with this folder of state";
            return Err(std::io::Error::other(text));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    lock.set_len(0)?;
    writeln!(lock, "{}", std::process::id())?;
    Ok(Some(lock))
}

/// Runs the daemon.
fn serve(place: &Place, is_detached: bool) -> std::io::Result<()> {
    let failed = |error: cenote_rt::Error| std::io::Error::other(error.to_string());
    save_addresses();
    // A working directory in one of its own mounts would keep that mount busy, and block the
    // process when it resolves a relative path.
    place.make()?;
    rustix::process::chdir("/")?;
    place.become_own();
    raise_open_files();
    lines::start()?;
    let Some(lock) = take_lock(place, is_detached)? else { return Ok(()) };
    stages::reach("daemon-locked");
    // Users of the command socket are identified; the volume socket admits by permissions.
    let activated = activated();
    let is_activated = activated.is_some();
    let listener = match activated {
        Some(listener) => listener,
        None => listen(&place.socket, 0o666)?,
    };
    let volumes = listen(&place.nbd(), 0o600);
    let volumes = volumes.inspect_err(|error| {
        let socket = place.nbd();
        log::warn!(path = %socket.display(), cause = %error, "no socket for volumes");
    });
    stages::reach("daemon-listening");
    let spare = SpareDescriptors::reserve();
    let signals = Signals::block().map_err(failed)?;
    log::catch_panics();
    log::info!(
        version = %env!("CARGO_PKG_VERSION"),
        process = %std::process::id(),
        state = %place.state.display(),
        "daemon started"
    );
    let (place, own_lock) = (place.clone(), lock.try_clone()?);
    let served = cenote_rt::block_on(0, async move {
        let pools = Pools::open(&place).await;
        stages::reach("daemon-pools-opened");
        pools.show();
        let servers = exports::serve(pools.exports(), volumes.ok(), &place).await;
        if let Err(error) = fuse::can_be_ended().await {
            let place = "/sys/fs/fuse/connections (a file system of type fusectl)";
            log::warn!(place = %place, cause = %error, "mounts cannot be ended from outside");
        }
        let state = place.state.clone();
        let commands =
            Commands::serve((listener, spare), Runtime::here(), Arc::clone(&pools), state)?;
        stages::reach("daemon-serving");
        signals.next().await;
        stages::reach("daemon-ending");
        commands.end();
        // New clients cannot find the socket any more; running commands may end. An activated
        // socket stays: the next command starts the daemon again.
        if !is_activated {
            std::fs::remove_file(&place.socket).ok();
        }
        let guards = pools.end_what_is_stuck();
        for server in servers {
            if let Err(error) = server.stop().await {
                log::warn!(cause = %error, "volumes not closed in order");
            }
        }
        stages::reach("daemon-volumes-closed");
        let is_quiet = pools.close().await;
        stages::reach("daemon-pools-closed");
        for guard in guards {
            guard.end().await;
        }
        log::info!("daemon stopped");
        if !is_quiet {
            // LOCK: released here, because threads that wait in the kernel for a device keep this
            // process, and its descriptors, until the device answers. All pools are closed, and
            // their devices stay locked; a new daemon can start.
            let _ = flock(&own_lock, FlockOperation::Unlock);
        }
        // A return would wait, without a deadline, for every thread that waits in the kernel, even
        // for a path or device that belongs to no pool.
        std::process::exit(0);
    });
    drop(lock);
    served.map_err(failed)?
}

/// Makes the allocator reserve addresses in small pieces if the process has few (`ulimit -v`): it
/// reserves a gibibyte at a time, which leaves too few for threads. To be called before anything is
/// opened: the process executes itself again.
fn save_addresses() {
    const RESERVE: &str = "MIMALLOC_ARENA_RESERVE";
    const RESERVE_KIB: &str = "65536";
    const FEW: u64 = 8 << 30;
    let is_limited = getrlimit(Resource::As).current.is_some_and(|limit| limit < FEW);
    if !is_limited || std::env::var_os(RESERVE).is_some() {
        return;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("cenote").args(std::env::args_os().skip(1)).env(RESERVE, RESERVE_KIB);
    // If that fails, the process continues as it is.
    drop(command.exec());
}

/// Raises the limit of open files to the maximum: each mount and each client needs one. Beyond
/// that, mounting fails with "Too many open files".
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On failure the old limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns the command socket, if the process that started this one listens on it already: the
/// first one of `LISTEN_FDS`.
fn activated() -> Option<UnixListener> {
    const FIRST: i32 = 3;
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) || number("LISTEN_FDS")? == 0 {
        return None;
    }
    let this = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
    let listener: UnixListener = pidfd_getfd(&this, FIRST, PidfdGetfdFlags::empty()).ok()?.into();
    // A socket has an address.
    listener.local_addr().ok()?;
    listener.set_nonblocking(false).ok()?;
    Some(listener)
}

/// Creates a socket with these permissions. To be called before there are other threads: the umask
/// is global to the process.
fn listen(path: &std::path::Path, rights: u32) -> std::io::Result<UnixListener> {
    // The previous owner of the lock has ended: its socket is stale.
    std::fs::remove_file(path).ok();
    let before = rustix::process::umask(Mode::from_raw_mode(!rights & 0o777));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}
