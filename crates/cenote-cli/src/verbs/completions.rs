//! `cenote completions`: completion scripts for shells.
//!
//! Verbs and options come from the usage texts, names of pools and datasets from the daemon if it
//! runs: pressing Tab never starts a daemon.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::wrong_use;
use crate::getopt;
use crate::io::{CommandResult, Io};
use crate::program;
use crate::usage::Tool;

const USAGE: &str = "\
usage: cenote completions bash|zsh

Prints a script with which the shell completes cenote, zpool and zfs:
  source <(cenote completions bash)
";

/// Shell command that prints words which `echo` would take for options.
const SAY: &str = "printf '%s '";

/// Part that both shells' scripts include.
const COMMON: &str = include_str!("completions.sh");
const BASH: &str = include_str!("completions.bash");
const ZSH: &str = include_str!("completions.zsh");

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[getopt::Long::flag("help", '?')])?;
    if parsed.has('?') {
        write!(io.out, "{USAGE}")?;
        return Ok(());
    }
    let form = match parsed.operands.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bash"] => BASH,
        ["zsh"] => ZSH,
        _ => return Err(wrong_use("a shell is needed: bash or zsh", USAGE)),
    };
    let script = form.replace("@COMMON@\n", COMMON).replace("@TABLE@\n", &table());
    Ok(write!(io.out, "{script}")?)
}

/// Returns the lines of a `case` over "TOOL VERB" (the options of the verb) and over "TOOL" (its
/// verbs).
fn table() -> String {
    let own: Vec<&str> = program::commands().collect();
    let mut text = format!("    cenote) {SAY} {} ;;\n", own.join(" "));
    for tool in [Tool::Zpool, Tool::Zfs] {
        let (name, verbs) = (tool.name(), tool.verbs());
        let _ = writeln!(text, "    {name}) {SAY} {} ;;", verbs.join(" "));
        for verb in verbs {
            let options: Vec<String> = options(&tool.synopsis(verb)).into_iter().collect();
            let _ = writeln!(text, "    '{name} {verb}') {SAY} {} ;;", options.join(" "));
        }
    }
    text
}

/// Returns the options that a synopsis names: `[-gHo property] [--json]`.
fn options(synopsis: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    let words = synopsis.split(|c: char| c.is_whitespace() || "[]|,".contains(c));
    for word in words {
        let name: String =
            word.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        if name.starts_with("--") && name.len() > 2 {
            options.insert(name);
        } else if let Some(letters) = name.strip_prefix('-') {
            options
                .extend(letters.chars().filter(|c| c.is_alphanumeric()).map(|c| format!("-{c}")));
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn script(shell: &str) -> String {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = ["cenote", "completions", shell].map(str::to_owned);
        assert_eq!(crate::run(&args, &mut Io { out: &mut out, err: &mut err }), 0);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn options_are_taken_from_the_usage() {
        let of = |tool: Tool, verb| options(&tool.synopsis(verb)).into_iter().collect::<Vec<_>>();
        assert_eq!(of(Tool::Zpool, "trim"), ["-c", "-d", "-r", "-s", "-w"]);
        assert!(of(Tool::Zpool, "status").contains(&"--json-int".to_owned()));
        assert!(of(Tool::Zfs, "snapshot").contains(&"-r".to_owned()));
        for shell in ["bash", "zsh"] {
            let text = script(shell);
            assert!(text.contains("cenote) printf '%s ' zpool zfs zdb zstream ls "), "{text}");
            assert!(text.contains("'zpool iostat') printf '%s ' -H "), "{text}");
            assert!(!text.contains("@TABLE@") && !text.contains("@COMMON@"));
        }
    }

    /// Returns the completions that bash offers.
    #[test]
    fn bash_completes() {
        let questions = r#"
cenote() {
  case "$*" in
    'daemon status') ;;
    'zpool list -H -o name') printf 'tank\ntest\n' ;;
    'zfs list -H -o name -t filesystem,volume') printf 'tank\ntank/home\n' ;;
    'zfs list -H -o name -t snapshot') printf 'tank@a\ntank@b\n' ;;
    *) echo "asked: $*" >&2 ;;
  esac
}
ask() { COMP_LINE=$1 COMP_POINT=${#1}; COMPREPLY=(); _cenote; echo "${COMPREPLY[*]}"; }
ask 'cenote da'
ask 'cenote zpool io'
ask 'zpool import --rew'
ask 'zpool iostat t'
ask 'zfs list -t all tank/'
ask 'cenote zfs destroy tank@'
ask 'zfs snapshot ta'
"#;
        let Ok(mut bash) = Command::new("bash")
            .args(["--norc", "-s"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            eprintln!("skipped: no bash here");
            return;
        };
        let mut stdin = bash.stdin.take().expect("piped");
        stdin.write_all((script("bash") + questions).as_bytes()).expect("a script");
        drop(stdin);
        let said = bash.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [
                "daemon",
                "iostat",
                "--rewind-to-checkpoint",
                "tank test",
                "tank/home",
                "a b",
                "tank tank/home",
            ]
        );
    }
}
