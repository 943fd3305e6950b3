//! Running a program under a memory limit and a time limit, for the damage tests.
//!
//! Both limits are set by the system's own tools (`ulimit -v` of the shell and `timeout`), so
//! that this crate stays without unsafe code.

use std::ffi::OsStr;
use std::process::{Command, Output};

/// The exit status of `timeout` after the time limit.
const TIMED_OUT: i32 = 124;

/// A command with limits.
#[derive(Debug)]
pub struct Limited {
    command: Command,
}

/// How a limited command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The exit status; none if a signal ended it.
    pub code: Option<i32>,
    /// True if it ran out of time.
    pub timed_out: bool,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

impl Limited {
    /// `program`, with at most `memory_bytes` of address space and `seconds` of time.
    pub fn new(program: impl AsRef<OsStr>, memory_bytes: u64, seconds: u64) -> Self {
        let mut command = Command::new("timeout");
        command.arg("--signal=KILL").arg(seconds.to_string());
        let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", memory_bytes / 1024);
        command.args(["sh", "-c", &script]).arg(program);
        Self { command }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Ended {
        let output = self.command.output();
        let Output { status, stdout, stderr } =
            output.unwrap_or_else(|error| panic!("{:?}: {error}", self.command));
        let code = status.code();
        // If killed by `timeout --signal=KILL`, it reports 137 for its child, or is killed itself.
        let timed_out = code.is_none() || matches!(code, Some(TIMED_OUT | 137));
        Ended { code, timed_out, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    }
}

impl Ended {
    /// True if the program panicked: Rust's exit status for that, or its message.
    pub fn panicked(&self) -> bool {
        self.code == Some(101) || self.stderr.contains("panicked at")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_enforced() {
        let quick = Limited::new("echo", 1 << 30, 20).args(["a", "b"]).run();
        assert_eq!((quick.code, &quick.stdout[..]), (Some(0), &b"a b\n"[..]));
        let slow = Limited::new("sleep", 1 << 30, 1).arg("30").run();
        assert!(slow.timed_out, "{slow:?}");
        let script = "x=$(head -c 300000000 /dev/zero | tr '\\0' a); echo ${#x}";
        let hungry = Limited::new("sh", 1 << 27, 20).args(["-c", script]).run();
        assert_ne!(hungry.stdout, b"300000000\n", "{:?}", hungry.stderr);
    }
}
