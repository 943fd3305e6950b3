//! `cenote completions`: completion scripts for shells.
//!
//! Verbs and options come from the usage texts, names of pools and datasets from the daemon if it
//! runs: pressing Tab never starts a daemon.

use std::collections::BTreeSet;

use super::wrong_use;
use crate::getopt;
use crate::io::{CommandResult, Io};
use crate::program;
use crate::usage::Tool;

const USAGE: &str = "\
usage: cenote completions bash|zsh|fish

Prints a script with which the shell completes cenote, zpool and zfs:
  source <(cenote completions bash)
  cenote completions fish | source
";

/// Shell command that prints words which `echo` would take for options.
const SAY: &str = "printf '%s '";

/// Part that both shells' scripts include.
const COMMON: &str = include_str!("completions.sh");
const BASH: &str = include_str!("completions.bash");
const ZSH: &str = include_str!("completions.zsh");
const FISH: &str = include_str!("completions.fish");

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[getopt::Long::flag("help", '?')])?;
    if parsed.has('?') {
        write!(io.out, "{USAGE}")?;
        return Ok(());
    }
    let script = match parsed.operands.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bash"] => BASH.replace("@COMMON@\n", COMMON).replace("@TABLE@\n", &table(posix_case)),
        ["zsh"] => ZSH.replace("@COMMON@\n", COMMON).replace("@TABLE@\n", &table(posix_case)),
        ["fish"] => FISH.replace("@TABLE@\n", &table(fish_case)),
        _ => return Err(wrong_use("a shell is needed: bash, zsh or fish", USAGE)),
    };
    Ok(write!(io.out, "{script}")?)
}

/// A case of the table in the shells' language.
fn posix_case(key: &str, words: &[String]) -> String {
    format!("    '{key}') {SAY} {} ;;\n", words.join(" "))
}

fn fish_case(key: &str, words: &[String]) -> String {
    format!("        case '{key}'\n            printf '%s\\n' {}\n", words.join(" "))
}

/// Returns the cases of a table: "TOOL" (its verbs), "TOOL VERB" (the options of the verb), "TOOL
/// properties" and "TOOL settable" (names of properties) and "TOOL values PROPERTY" (its values).
fn table(case: impl Fn(&str, &[String]) -> String) -> String {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut text = case("cenote", &owned(&program::commands().collect::<Vec<_>>()));
    for tool in Tool::ALL {
        let (name, verbs) = (tool.name(), tool.verbs());
        text += &case(name, &owned(&verbs));
        for verb in verbs {
            let options: Vec<String> = options(&tool.synopsis(verb)).into_iter().collect();
            text += &case(&format!("{name} {verb}"), &options);
        }
        let (all, settable) = (tool.property_names(), tool.settable_names());
        text += &case(&format!("{name} properties"), &owned(&all.collect::<Vec<_>>()));
        text += &case(&format!("{name} settable"), &owned(&settable.collect::<Vec<_>>()));
        for (property, values) in tool.property_values() {
            text += &case(&format!("{name} values {property}"), &owned(&values));
        }
    }
    text
}

/// Returns the options that a synopsis names: `[-gHo property] [--json]`.
pub(crate) fn options(synopsis: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    let words = synopsis.split(|c: char| c.is_whitespace() || "[]<>|,".contains(c));
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
            assert!(text.contains("'cenote') printf '%s ' zpool zfs zdb zstream ls "), "{text}");
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
ask 'zfs set compr'
ask 'zfs set compression=lz'
ask 'zfs set -u atime=off ta'
ask 'zfs get refq'
ask 'zfs create -o checksum=sk'
ask 'zpool create -O relat'
ask 'zpool set failmode=c'
ask 'zpool get heal'
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
                "compression=",
                "lzjb lz4",
                "tank tank/home",
                "refquota",
                "skein",
                "relatime=",
                "continue",
                "health",
            ]
        );
    }

    /// Returns what a shell prints for this script, or `None` if it is not installed.
    fn said_by(shell: &[&str], script: &str) -> Option<String> {
        let (program, options) = shell.split_first()?;
        let mut command = Command::new(program);
        let command = command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: no {program} here");
            return None;
        };
        child.stdin.take()?.write_all(script.as_bytes()).ok()?;
        let said = child.wait_with_output().ok()?;
        Some(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    #[test]
    fn fish_and_zsh_complete() {
        let questions = r#"
function cenote
    switch "$argv"
        case 'daemon status'
        case 'zpool list -H -o name'
            printf 'tank\ntest\n'
        case 'zfs list -H -o name -t filesystem,volume'
            printf 'tank\ntank/home\n'
        case 'zfs list -H -o name -t snapshot'
            printf 'tank@a\ntank@b\n'
    end
end
for line in 'cenote da' 'cenote zpool ios' 'cenote zpool import --rew' 'cenote zpool iostat te' \
    'cenote zfs list -t all tank/' 'cenote zfs destroy tank@' 'cenote zfs set compressi' \
    'cenote zfs set compression=lz' 'cenote zfs get refq' 'cenote zpool create -O relat'
    echo (complete -C $line | string match -r '^[^\t]*')
end
"#;
        if let Some(said) = said_by(&["fish", "--no-config"], &(script("fish") + questions)) {
            let wanted = [
                "daemon",
                "iostat",
                "--rewind-to-checkpoint",
                "test",
                "tank/home",
                "tank@a tank@b",
                "compression=",
                "compression=lz4 compression=lzjb",
                "refquota",
                "relatime=",
            ];
            assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
        }
        // The functions of completion exist in an interactive shell only: these stand for them.
        let questions = r#"
compadd() { shift $(($@[(i)--])); print -r -- $@ }
_files() { print files }
ask() { words=($=1); CURRENT=$#words; [[ $1 == *' ' ]] && { words+=(''); CURRENT+=1 }; _cenote }
_cenote_names() { print "tank tank/home" }
words=(cenote da) CURRENT=2
_cenote_table 'zfs values atime'
print
ask 'cenote zfs set compression='
"#;
        let script = script("zsh").replace("\n_cenote \"$@\"\n", "\n");
        if let Some(said) = said_by(&["zsh", "-f"], &(script + questions)) {
            assert!(said.starts_with("on off \n"), "{said}");
            assert!(said.contains("compression=lz4"), "{said}");
        }
    }
}
