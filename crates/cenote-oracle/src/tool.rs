//! Finding OpenZFS's tools, running them, and their output.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use cenote_testkit::skip;

use crate::shims;

/// The series of OpenZFS whose messages and columns cenote reproduces.
pub const SERIES: &str = "2.3.";

/// Where Debian installs the tools, for users whose `PATH` does not contain the system's folders.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// One of OpenZFS's programs.
#[derive(Debug, Clone)]
pub struct Tool {
    program: PathBuf,
    shim: Option<PathBuf>,
}

/// The output and the exit status of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The command as one could type it.
    pub command: String,
    /// The exit status; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output as text; invalid UTF-8 is replaced.
    pub stdout: String,
    /// Standard error as text.
    pub stderr: String,
}

/// `zdb`, if it is installed in the right series; otherwise reports that the running test is
/// skipped.
pub fn zdb() -> Option<Tool> {
    static FOUND: OnceLock<Result<Tool, String>> = OnceLock::new();
    found_or_skip(FOUND.get_or_init(|| find("zdb", version_of)))
}

/// `zstream`, if it is installed; otherwise reports that the running test is skipped.
pub fn zstream() -> Option<Tool> {
    static FOUND: OnceLock<Result<Tool, String>> = OnceLock::new();
    found_or_skip(FOUND.get_or_init(|| find("zstream", |_| Ok(()))))
}

/// The tool, if it was found; otherwise reports that the running test is skipped.
pub(crate) fn found_or_skip<T: Clone>(found: &Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found.clone()),
        Err(why) => {
            skip::skip(&skip::current_test(), why);
            None
        }
    }
}

fn find(name: &str, check: fn(&Tool) -> Result<(), String>) -> Result<Tool, String> {
    let program = locate(name).ok_or_else(|| format!("no {name} here to judge"))?;
    let shim = if name == "zdb" { shims::find("atonce") } else { None };
    let tool = Tool { program, shim };
    check(&tool).map(|()| tool)
}

/// The path of a program.
pub(crate) fn locate(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|program| program.is_file())
}

/// `zdb` of another series prints other texts. `zdb` has no option for its version; `zfs`, from the
/// same package, prints it if the kernel module is loaded.
fn version_of(tool: &Tool) -> Result<(), String> {
    let output = Command::new(tool.program.with_file_name("zfs")).arg("version").output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    judge_version(&String::from_utf8_lossy(&text))
}

fn judge_version(text: &str) -> Result<(), String> {
    let mut versions = text.split_whitespace().filter_map(|word| word.strip_prefix("zfs-"));
    let version = versions.find(|version| version.starts_with(char::is_numeric));
    // If `zfs` is missing or prints nothing, `zdb` is assumed to be of the right series.
    match version {
        Some(version) if !version.starts_with(SERIES) => {
            Err(format!("zdb is {version}, not of the {SERIES}x series"))
        }
        _ => Ok(()),
    }
}

impl Tool {
    /// A program, without checks of its version.
    pub(crate) const fn new(program: PathBuf) -> Self {
        Self { program, shim: None }
    }

    /// Runs it with `arguments`.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Said {
        let mut command = Command::new(&self.program);
        // One time zone and language for all tests, as for the golden texts.
        command.args(arguments).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        if let Some(shim) = &self.shim {
            command.env("LD_PRELOAD", shim);
        }
        let shown = format!("{command:?}");
        let Output { status, stdout, stderr } =
            command.output().unwrap_or_else(|error| panic!("{shown}: {error}"));
        Said {
            command: shown,
            code: status.code(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Runs it with a file as standard input; for tools that read and write streams.
    pub fn filter<A: AsRef<OsStr>>(&self, arguments: &[A], input: &Path) -> Output {
        let mut command = Command::new(&self.program);
        let file = std::fs::File::open(input);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", input.display()));
        command.args(arguments).env("LC_ALL", "C.UTF-8").stdin(file);
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// `zdb -e -p DEVICES OPTIONS TARGET`: a pool that is not imported, in a folder of images.
    /// `target` is the pool, or a dataset in it, followed by the arguments that the options need.
    pub fn pool(&self, target: &str, devices: &Path, options: &[&str]) -> Said {
        self.pool_with(devices, options, &[target])
    }

    /// As [`Tool::pool`], with several words after the options: a dataset and object numbers.
    pub fn pool_with(&self, devices: &Path, options: &[&str], targets: &[&str]) -> Said {
        let folder = devices.to_string_lossy();
        let fixed = ["-e", "-p", folder.as_ref()];
        self.run(&[&fixed[..], options, targets].concat())
    }

    /// `zstream dump -v` of a stream in a file.
    pub fn dump_stream(&self, stream: &Path) -> Said {
        self.run(&[OsStr::new("dump"), OsStr::new("-v"), stream.as_os_str()])
    }
}

impl Said {
    /// True if it ended with status 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// True if `zdb -bcc` found no errors: no leak, no double allocation, no bad block.
    pub fn is_clean(&self) -> bool {
        self.is_success()
            && self.stdout.contains("No leaks (block sum matches space maps exactly)")
            && !self.stdout.contains("leaked space")
            && !self.complains_of_more_than_leaks()
    }

    /// True if `zdb -bcc` found leaked space (allocated and not referenced), and no other errors.
    /// It ends with status 0 then.
    pub fn has_leaks_only(&self) -> bool {
        self.is_success() && self.leaked() > 0 && !self.complains_of_more_than_leaks()
    }

    fn complains_of_more_than_leaks(&self) -> bool {
        let complaints = ["errors encountered", "counts:", "not allocated", "mismatch"];
        complaints.iter().any(|complaint| self.stdout.contains(complaint))
    }

    /// Bytes of all space that `zdb -b` calls leaked.
    pub fn leaked(&self) -> u64 {
        let lines = self.stdout.lines().filter(|line| line.starts_with("leaked space:"));
        let sizes = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        sizes.sum()
    }
}

impl fmt::Display for Said {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ended with {:?}\n{}{}", self.command, self.code, self.stdout, self.stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_series_judges() {
        for (text, is_fine) in [
            ("zfs-2.3.2-1~bpo12+1\n", true),
            ("zfs-2.1.11-1\nzfs-kmod-2.1.11-1\n", false),
            ("", true),
        ] {
            assert_eq!(judge_version(text).is_ok(), is_fine, "{text:?}");
        }
    }

    #[test]
    fn zdb_finds_a_golden_pool_clean_and_a_damaged_copy_not() {
        let (Some(zdb), Some(golden)) = (zdb(), cenote_testkit::golden("g-quota")) else { return };
        let said = zdb.pool("g-quota", &golden.images(), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
        let copy = golden.private_copy();
        let device = copy.device(0);
        let noise =
            cenote_testkit::damage::Damage::Noise { offset: 5 << 20, len: 1 << 20, seed: 1 };
        noise.apply(&device);
        let said = zdb.pool("g-quota", copy.path(), &["-bcc"]);
        assert!(!said.is_clean(), "{said}");
    }
}
