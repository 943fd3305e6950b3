//! The manual of `zpool` and `zfs`: what each verb does, and each of its options, in our words.
//!
//! ```text
//!   manual/zpool.txt ──> Page ──> 'zpool create --help', 'zpool help create'
//!   manual/zfs.txt       `──────> zpool-create(8), made by 'cenote manual --out DIR'
//! ```
//!
//! A page begins with a line `# VERB`, then has a text, and a line for each option: the option with
//! the name of its argument, a tab, and what it does. The synopsis is that of the usage text, and a
//! test compares the options of both, so that none is missing and none is left over.

use std::fmt::Write as _;
use std::path::Path;

use crate::getopt::{self, Long};
use crate::io::{CommandResult, Exit, Io, words};
use crate::usage::Tool;
use crate::{argument, out, program};

const USAGE: &str = "\
usage: cenote manual [TOOL] VERB
       cenote manual --out DIR
  Prints the manual page of a verb of zpool, zfs or cenote, for 'man -l -', or writes all of them to
  DIR: zpool-create.8, cenote-lab.8 and so on.
";

/// Commands in the help that have manual pages of another kind.
const OTHERS: [&str; 4] = ["zpool", "zfs", "zdb", "daemon"];

/// The page of a verb.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    tool: Tool,
    verb: &'static str,
    about: String,
    /// Options with the names of their arguments, and what they do.
    options: Vec<(&'static str, &'static str)>,
}

impl Page {
    /// Returns the page of a verb.
    pub(crate) fn of(tool: Tool, verb: &str) -> Option<Self> {
        let text = match tool {
            Tool::Zpool => include_str!("manual/zpool.txt"),
            Tool::Zfs => include_str!("manual/zfs.txt"),
        };
        let mut lines = text.lines();
        let title = lines.by_ref().find(|line| line.strip_prefix("# ") == Some(verb))?;
        let mut page = Self { tool, verb: &title[2..], about: String::new(), options: Vec::new() };
        for line in lines.take_while(|line| !line.is_empty()) {
            match line.split_once('\t') {
                Some(option) => page.options.push(option),
                None => {
                    let _ = writeln!(page.about, "{line}");
                }
            }
        }
        Some(page)
    }

    /// Returns the text for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("usage:\n{}\n{}", self.tool.synopsis(self.verb), self.about);
        let width = self.options.iter().map(|(option, _)| option.len()).max().unwrap_or_default();
        if !self.options.is_empty() {
            text.push('\n');
        }
        for (option, what) in &self.options {
            let _ = writeln!(text, "  {option:width$}  {what}");
        }
        if let Some(properties) = self.tool.properties_of(self.verb) {
            let _ = write!(text, "\n{properties}");
        }
        text
    }

    /// Returns the manual page in the language of `man`.
    fn roff(&self) -> String {
        let (tool, verb) = (self.tool.name(), self.verb);
        let title = format!("{tool}-{verb}");
        let first = self.about.split_inclusive(". ").next().unwrap_or_default();
        let first = first.lines().collect::<Vec<_>>().join(" ");
        let first = first.trim().trim_end_matches('.');
        let mut text =
            String::from(".\\\" Made by 'cenote manual' from the program's own texts.\n");
        let _ = writeln!(text, ".TH {} 8 \"\" cenote", roff(&title.to_uppercase()));
        let _ = writeln!(text, ".SH NAME\n{} \\- {}", roff(&title), roff(&lower(first)));
        text.push_str(".SH SYNOPSIS\n");
        for (index, form) in forms(&self.tool.synopsis(verb)).iter().enumerate() {
            let space = if index == 0 { "" } else { ".PP\n" };
            let _ = writeln!(text, "{space}.B {tool} {verb}\n{}", roff(form));
        }
        let _ = write!(text, ".SH DESCRIPTION\n{}", roff(&self.about));
        if !self.options.is_empty() {
            text.push_str(".SH OPTIONS\n");
        }
        for (option, what) in &self.options {
            let (name, value) = option.split_once(' ').unwrap_or((option, ""));
            let value =
                if value.is_empty() { String::new() } else { format!(" \\fI{}\\fR", roff(value)) };
            let _ = writeln!(text, ".TP\n\\fB{}\\fR{value}\n{}", roff(name), roff(what));
        }
        if let Some(properties) = self.tool.properties_of(verb) {
            let _ = writeln!(text, ".SH PROPERTIES\n.nf\n{}.fi", roff(properties));
        }
        let _ = writeln!(text, ".SH SEE ALSO\n.BR cenote (8),\n.BR {tool} (8)");
        text
    }
}

/// Returns the forms of a verb in a synopsis, without the verb.
fn forms(synopsis: &str) -> Vec<String> {
    let mut forms: Vec<String> = Vec::new();
    for line in synopsis.lines() {
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        match forms.last_mut() {
            Some(form) if line.starts_with("\t ") => {
                let _ = write!(form, " {words}");
            }
            _ => forms.push(words.split_once(' ').map(|(_, rest)| rest).unwrap_or_default().into()),
        }
    }
    forms
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Escapes a text for `man`: a line of it never begins a request.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |line: &str| {
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        format!("{guard}{line}")
    };
    let ends = if text.ends_with('\n') { "\n" } else { "" };
    escaped.lines().map(line).collect::<Vec<_>>().join("\n") + ends
}

/// Runs `cenote manual`.
pub(crate) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let wrong = |message: &str| Exit::Usage(format!("{message}\n{}", USAGE.trim_end()));
    let longs = [Long::flag("help", '?'), Long::with_argument("out", 'o')];
    let parsed = getopt::parse(args, "", &longs).map_err(|exit| wrong(&exit.message()))?;
    if parsed.has('?') {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let operands: Vec<&str> = parsed.operands.iter().map(String::as_str).collect();
    let wanted = match (&operands[..], parsed.value('o')) {
        ([], Some(folder)) => return write_all(&argument::path(folder), io),
        ([verb], None) => format!("-{verb}"),
        ([tool, verb], None) => format!("{tool}-{verb}"),
        _ => return Err(wrong("a verb is needed, or --out")),
    };
    match all().find(|(name, _)| name.ends_with(&wanted)) {
        Some((_, page)) => Ok(write!(io.out, "{}", page())?),
        None => Err(wrong(&format!("no manual page of '{}'", operands.join(" ")))),
    }
}

/// A page that is made when it is needed.
type Made = Box<dyn Fn() -> String>;

/// Returns the names of all pages, without the section, and the pages.
fn all() -> impl Iterator<Item = (String, Made)> {
    let of_tools = Tool::ALL.into_iter().flat_map(|tool| {
        tool.verbs().into_iter().map(move |verb| {
            let made = move || Page::of(tool, verb).map(|page| page.roff()).unwrap_or_default();
            (format!("{}-{verb}", tool.name()), Box::new(made) as Made)
        })
    });
    let own = program::commands().filter(|command| !OTHERS.contains(command));
    let own = own
        .map(|command| (format!("cenote-{command}"), Box::new(move || own_page(command)) as Made));
    of_tools.chain(own)
}

/// Returns the page of a command of cenote: what it prints with `--help`.
fn own_page(command: &str) -> String {
    let (text, _, _) = program::run_captured(&[command, "--help"]);
    let title = roff(&format!("cenote-{command}"));
    format!(
        ".\\\" Made by 'cenote manual' from the program's own texts.\n\
         .TH {} 8 \"\" cenote\n.SH NAME\n{title} \\- the command {} of cenote\n\
         .SH SYNOPSIS AND DESCRIPTION\n.nf\n{}.fi\n.SH SEE ALSO\n.BR cenote (8)\n",
        title.to_uppercase(),
        roff(command),
        roff(&text)
    )
}

fn write_all(folder: &Path, io: &mut Io<'_>) -> CommandResult {
    let mut count = 0;
    for (name, page) in all() {
        let file = folder.join(format!("{name}.8"));
        std::fs::write(&file, page()).map_err(|error| {
            Exit::failed(format!("cannot write {}: {}", file.display(), words(&error)))
        })?;
        count += 1;
    }
    out!(io, "{count} pages are in {}", folder.display())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::verbs::completions;

    /// Options that a synopsis of OpenZFS leaves out, or has without a meaning.
    const OTHER: [(&str, &[&str]); 12] = [
        (
            "zpool add",
            &["--allow-ashift-mismatch", "--allow-in-use", "--allow-replication-mismatch"],
        ),
        ("zpool create", &["-t"]),
        ("zpool import", &["-T", "-X", "-t"]),
        ("zpool iostat", &[]),
        ("zpool reguid", &[]),
        ("zfs clone", &["-u"]),
        ("zfs program", &[]),
        ("zfs receive", &["-c"]),
        ("zfs share", &[]),
        ("zfs send", &["-S"]),
        ("zfs rename", &[]),
        ("zfs wait", &[]),
    ];

    #[test]
    fn pages_have_the_options_of_the_synopsis() {
        for tool in Tool::ALL {
            for verb in tool.verbs() {
                let name = format!("{} {verb}", tool.name());
                let page = Page::of(tool, verb).unwrap_or_else(|| panic!("no page of {name}"));
                assert!(page.about.ends_with(".\n"), "{name}: {}", page.about);
                let option = |(option, _): &(&'static str, _)| option.split(' ').next();
                let documented: BTreeSet<_> =
                    page.options.iter().filter_map(option).map(str::to_owned).collect();
                assert_eq!(documented.len(), page.options.len(), "{name}: an option twice");
                let mut wanted = completions::options(&tool.synopsis(verb));
                let other = OTHER.iter().find(|(of, _)| *of == name);
                wanted
                    .extend(other.iter().flat_map(|(_, more)| *more).map(|&more| more.to_owned()));
                assert_eq!(documented, wanted, "{name}");
            }
        }
    }

    #[test]
    fn pages_are_text_and_roff() {
        let page = Page::of(Tool::Zpool, "attach").expect("a page");
        let text = page.text();
        assert!(text.starts_with("usage:\n\tattach [-fsw] "), "{text}");
        assert!(
            text.contains("\n  -w                 waits until the device is complete\n"),
            "{text}"
        );
        let roff = page.roff();
        for part in [
            ".TH ZPOOL\\-ATTACH 8 ",
            "\nzpool\\-attach \\- adds a device to a mirror",
            "\n.SH SYNOPSIS\n.B zpool attach\n[\\-fsw] [\\-o property=value] <pool> <device> <new\\-device>\n",
            "\n.TP\n\\fB\\-o\\fR \\fIPROPERTY=VALUE\\fR\nsets ashift for the new device\n",
        ] {
            assert!(roff.contains(part), "{part}\n{roff}");
        }
        assert_eq!(super::roff(".x\n'y\n\\z-\n"), "\\&.x\n\\&'y\n\\ez\\-\n");
        assert!(Page::of(Tool::Zfs, "attach").is_none());
    }

    /// Every page is understood by a program that checks manual pages, where one is installed.
    #[test]
    fn every_page_is_valid() {
        let folder = std::env::temp_dir().join(format!("cenote-manual-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.to_str().expect("UTF-8").to_owned();
        let (said, _, status) = program::run_captured(&["manual", "--out", &path]);
        assert_eq!(status, 0);
        let count: usize = said.split(' ').next().expect("a number").parse().expect("a number");
        assert!(count > 80, "{said}");
        for file in std::fs::read_dir(&folder).expect("pages") {
            let file = file.expect("a page").path();
            let text = std::fs::read_to_string(&file).expect("text");
            assert!(text.lines().count() > 8, "{}: {text}", file.display());
            let checked = std::process::Command::new("mandoc")
                .args(["-T", "lint", "-W", "warning"])
                .arg(&file)
                .output();
            let Ok(checked) = checked else {
                eprintln!("skipped in part: no mandoc here");
                break;
            };
            let said = String::from_utf8_lossy(&checked.stdout);
            // The date is left out, so that pages are the same in every build.
            let others: Vec<_> = said.lines().filter(|line| !line.contains("date")).collect();
            assert!(others.is_empty(), "{others:#?}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(program::run_captured(&["manual", "nosuch"]).2, 2);
    }
}
