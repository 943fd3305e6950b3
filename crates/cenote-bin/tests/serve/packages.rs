//! What `packaging/install.sh` installs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::golden::PrivateFolder;

use crate::{has, succeeds};

/// Runs the installer; returns where the program is installed.
fn install(folder: &PrivateFolder, prefix: &str, words: &[&str]) -> PathBuf {
    let path = |name: &str| folder.path().join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/install.sh");
    let mut command = Command::new("bash");
    command.arg(script).arg(env!("CARGO_BIN_EXE_cenote")).arg(path(prefix)).args(words);
    command.env("HOME", path("home")).env_remove("DESTDIR").env_remove("PREFIX");
    succeeds(&mut command);
    path(prefix)
}

#[test]
fn installed_programs_pages_and_completions_are_there() {
    let folder = PrivateFolder::create("packages-files");
    let at = install(&folder, "usr", &["--links"]);
    for name in ["bin/cenote", "sbin/zpool", "sbin/zfs", "sbin/mount.zfs", "lib/cenote/bin/zdb"] {
        let mode = fs::metadata(at.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{name}");
    }
    for name in [
        "share/man/man8/cenote.8.gz",
        "share/man/man8/cenote-zpool-create.8.gz",
        "share/man/man8/zpool-create.8.gz",
        "share/bash-completion/completions/cenote",
        "share/zsh/vendor-completions/_cenote",
        "share/fish/vendor_completions.d/cenote.fish",
        "lib/systemd/system/cenote.socket",
    ] {
        assert!(fs::metadata(at.join(name)).is_ok_and(|file| file.len() > 0), "{name}");
    }
    let mut zpool = Command::new(at.join("sbin/zpool"));
    assert!(succeeds(zpool.args(["help", "create"])).contains("create "));
}

#[test]
fn installed_units_are_what_systemd_expects() {
    if !has("systemd-analyze") {
        return;
    }
    let folder = PrivateFolder::create("packages-units");
    let system = install(&folder, "usr", &[]);
    let home = install(&folder, "home/.local", &[]);
    assert!(!home.join("lib/systemd").exists(), "units of the system in a home directory");
    for (unit_dir, kind) in [
        (system.join("lib/systemd/system"), "--system"),
        (system.join("lib/systemd/user"), "--user"),
        (home.join("share/systemd/user"), "--user"),
    ] {
        let verify = |unit_dir: &Path| {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", kind]);
            command.args(["cenote.service", "cenote.socket"].map(|unit| unit_dir.join(unit)));
            command.env("XDG_RUNTIME_DIR", folder.path());
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success(), said)
        };
        assert_eq!(verify(&unit_dir), (true, String::new()), "{}", unit_dir.display());
        // A mistake is noticed.
        let service = unit_dir.join("cenote.service");
        let text = fs::read_to_string(&service).unwrap().replace("KillMode=mixed", "KillMode=most");
        fs::write(&service, text).unwrap();
        let (_, said) = verify(&unit_dir);
        assert!(said.contains("kill mode"), "{said}");
    }
}
