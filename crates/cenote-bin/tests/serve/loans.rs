//! Commands that read devices in their own process, on a pool that the daemon has open.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cenote_testkit::skip;

use crate::daemon::{House, has_fuse};
use crate::succeeds;

/// A file's contents: different in each block.
fn contents(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(step).collect()
}

#[test]
fn pools_of_the_daemon_are_found_without_their_devices() {
    if !has_fuse() {
        return;
    }
    let house = House::new("loans-found");
    house.create(&house.text("at"));
    house.run("zfs create t/a");
    let bytes = contents(3 << 20, 7);
    fs::write(house.path("at/a/file"), &bytes).unwrap();
    // What programs have written is read, although no command has synced it.
    assert_eq!(house.run("ls t/a"), "file\n");
    let read = house.command(&["cat", "t/a", "/file"]).output().unwrap();
    assert!(read.status.success() && read.stdout == bytes, "{read:?}");
    house.run("zfs snapshot t/a@one");
    fs::remove_file(house.path("at/a/file")).unwrap();
    assert_eq!(house.run("ls t/a"), "");
    house.run(&format!("cp -r t/a@one / {}", house.text("out")));
    assert_eq!(fs::read(house.path("out/file")).unwrap(), bytes);
    assert!(house.run("where t/a@one /file").contains(&house.text("pool/d0")));
    let said = house.run("verify --leaks t");
    assert!(said.contains("t: no errors\n") && said.contains("no leaks"), "{said}");
    // By guid, and with a daemon that has to be started.
    house.kill();
    let guid = house.run("zpool get -H -o value guid t");
    house.run(&format!("verify {guid}"));
    house.run("daemon stop");
    assert_eq!(house.run("ls t/a@one"), "file\n");
    // A device that is gone is missing for the command, too.
    fs::rename(house.path("pool/d1"), house.path("d1")).unwrap();
    let (status, said) = {
        let output = house.command(&["verify", "t"]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert!(status == Some(1) && said.contains("pool/d1: not available"), "{said}");
    fs::rename(house.path("d1"), house.path("pool/d1")).unwrap();
    assert_eq!(
        house.fails("ls nosuch"),
        (1, "cannot open 'nosuch': dataset does not exist\n".into())
    );
    house.run("zpool export t");
    let (_, said) = house.fails("verify t");
    assert!(said.contains("no such pool"), "{said}");
}

/// Blocks of the state that is read are not reused meanwhile, however much is written and freed.
#[test]
fn verify_finds_nothing_beside_writers() {
    if !has_fuse() {
        return;
    }
    let house = House::new("loans-beside");
    house.create(&house.text("at"));
    house.run("zfs set compression=off t");
    let end = Instant::now() + Duration::from_secs(10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if Instant::now() > end {
                    break;
                }
                let path = house.path(&format!("at/f{}", round % 5));
                fs::write(&path, contents(4 << 20, round)).unwrap();
                // Through the intent log, whose blocks are used again soon.
                let file = fs::OpenOptions::new().append(true).open(path).unwrap();
                for _ in 0..20 {
                    (&file).write_all(&[1; 5000]).unwrap();
                    file.sync_all().unwrap();
                }
                if round % 3 == 0 {
                    house.run("zpool sync t");
                }
            }
        });
        let mut count = 0;
        while Instant::now() < end {
            let said = house.run("verify t");
            assert!(said.contains("t: no errors\n"), "{said}");
            count += 1;
        }
        assert!(count > 2);
    });
    house.run("zpool export t");
}

/// Starts a command whose output nobody reads, and waits until it has begun.
fn stuck_reader(house: &House) -> Child {
    let mut command = house.command(&["cat", "t", "/big"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    let mut first = [0; 1];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("output");
    child
}

/// Returns the status and the messages of a command, which must end by itself.
fn ends(mut child: Child) -> (Option<i32>, String) {
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().expect("a process").is_none() {
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("its output");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_command_ends_when_its_state_is_not_kept_any_more() {
    if !has_fuse() {
        return;
    }
    let house = House::new("loans-end");
    house.create(&house.text("at"));
    fs::write(house.path("at/big"), contents(24 << 20, 3)).unwrap();
    // An export does not wait for the reader.
    let reader = stuck_reader(&house);
    house.run("zpool export t");
    let (status, said) = ends(reader);
    assert!(status == Some(1) && said.contains("cannot read 't' any longer"), "{said}");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    let reader = stuck_reader(&house);
    house.kill();
    let (status, said) = ends(reader);
    assert_eq!((status, said.as_str()), (Some(1), "the daemon has ended\n"));
    // A reader that is killed leaves nothing behind: its space is used again.
    let mut reader = stuck_reader(&house);
    reader.kill().unwrap();
    reader.wait().unwrap();
    for round in 0..12 {
        fs::write(house.path("at/other"), contents(24 << 20, round)).unwrap();
        house.run("zpool sync t");
    }
    house.run("zpool export t");
}

#[test]
fn other_users_borrow_nothing() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "needs root");
    }
    let house = House::new("loans-others");
    house.create("none");
    // Others may reach the socket and the program.
    fs::set_permissions(house.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let program = house.path("program");
    fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["verify", "t"]).current_dir("/").env("CENOTE_STATE_DIR", house.path("state"));
    let output = command.uid(65534).gid(65534).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let why = "cannot read the devices of 't': permission denied\n";
    assert!(output.status.code() == Some(1) && said.contains(why), "{said}");
    succeeds(&mut house.command(&["verify", "t"]));
}
