//! Option parsing as OpenZFS's commands do it: one option string per verb, GNU permutation.
//!
//! The option string is the one fact to compare with the manual page: a letter is an option, a
//! letter with `:` takes an argument, a letter with `::` an optional argument attached to it.
//! Options and operands may be mixed, unless `POSIXLY_CORRECT` is set; `--` ends the options. Long
//! options are a table of names. OpenZFS's messages for wrong options are "invalid option 'x'" and
//! "missing argument for 'x' option", followed by the usage text and status 2 (some scripts read
//! the first line).

use crate::environment;
use crate::io::Exit;

/// A long option: its name, whether it takes an argument, and the letter it stands for.
#[derive(Debug, Clone, Copy)]
pub struct Long {
    /// Name without the dashes.
    pub name: &'static str,
    /// Whether an argument follows.
    pub has_argument: bool,
    /// The letter under which [`Parsed`] reports the option: that of its short form, or any other
    /// character.
    pub letter: char,
}

impl Long {
    /// Returns an option without an argument.
    pub const fn flag(name: &'static str, letter: char) -> Self {
        Self { name, has_argument: false, letter }
    }

    /// Returns an option with an argument.
    pub const fn with_argument(name: &'static str, letter: char) -> Self {
        Self { name, has_argument: true, letter }
    }
}

/// The parsed options, in the given order, and the operands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Letter and argument of each option.
    pub options: Vec<(char, Option<String>)>,
    /// The arguments that are not options.
    pub operands: Vec<String>,
}

impl Parsed {
    /// Whether the option was given.
    pub fn has(&self, letter: char) -> bool {
        self.options.iter().any(|(l, _)| *l == letter)
    }

    /// Returns how often the option was given.
    pub fn count(&self, letter: char) -> usize {
        self.options.iter().filter(|(l, _)| *l == letter).count()
    }

    /// Returns the argument of the last use of the option.
    pub fn value(&self, letter: char) -> Option<&str> {
        self.options.iter().rev().find(|(l, _)| *l == letter).and_then(|(_, v)| v.as_deref())
    }

    /// Returns the arguments of all uses of the option.
    pub fn values(&self, letter: char) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(l, _)| *l == letter).filter_map(|(_, v)| v.as_deref())
    }
}

/// Returns the message for an option without its argument.
pub(crate) fn missing_argument(letter: char) -> String {
    format!("missing argument for '{letter}' option")
}

/// Returns exactly `N` operands; `missing` has a message for each that is missing.
pub(crate) fn exactly<'o, const N: usize>(
    operands: &'o [String],
    missing: [&'static str; N],
) -> Result<&'o [String; N], Exit> {
    let message = missing.get(operands.len()).copied().unwrap_or("too many arguments");
    operands.try_into().map_err(|_| Exit::usage(message))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Argument,
    OptionalArgument,
}

fn takes(optstring: &str, letter: char) -> Option<Takes> {
    if letter == ':' {
        return None;
    }
    let mut rest = optstring.trim_start_matches([':', '+']).chars().peekable();
    while let Some(candidate) = rest.next() {
        let mut colons = 0;
        while rest.next_if_eq(&':').is_some() {
            colons += 1;
        }
        if candidate == letter {
            return Some(match colons {
                0 => Takes::Nothing,
                1 => Takes::Argument,
                _ => Takes::OptionalArgument,
            });
        }
    }
    None
}

/// Parses `args` by `optstring` and `longs`. A leading `+` stops at the first operand.
pub fn parse(args: &[String], optstring: &str, longs: &[Long]) -> Result<Parsed, Exit> {
    let is_posix = environment::variable(environment::POSIX).is_some();
    let stop_at_operand = optstring.starts_with('+') || is_posix;
    let mut parsed = Parsed::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            parsed.operands.extend(rest.cloned());
            break;
        } else if let Some(long) = arg.strip_prefix("--") {
            parse_long(long, longs, &mut rest, &mut parsed)?;
        } else if arg.len() > 1 && arg.starts_with('-') {
            parse_cluster(&arg[1..], optstring, &mut rest, &mut parsed)?;
        } else if stop_at_operand {
            parsed.operands.push(arg.clone());
            parsed.operands.extend(rest.cloned());
            break;
        } else {
            parsed.operands.push(arg.clone());
        }
    }
    Ok(parsed)
}

fn parse_cluster(
    cluster: &str,
    optstring: &str,
    rest: &mut std::slice::Iter<'_, String>,
    parsed: &mut Parsed,
) -> Result<(), Exit> {
    let mut letters = cluster.chars();
    while let Some(letter) = letters.next() {
        let attached = letters.as_str();
        let argument = match takes(optstring, letter) {
            None => return Err(Exit::usage(format!("invalid option '{letter}'"))),
            Some(Takes::Nothing) => {
                parsed.options.push((letter, None));
                continue;
            }
            Some(Takes::OptionalArgument) => (!attached.is_empty()).then(|| attached.to_owned()),
            Some(Takes::Argument) if !attached.is_empty() => Some(attached.to_owned()),
            Some(Takes::Argument) => {
                let Some(next) = rest.next() else {
                    return Err(Exit::usage(missing_argument(letter)));
                };
                Some(next.clone())
            }
        };
        parsed.options.push((letter, argument));
        return Ok(());
    }
    Ok(())
}

fn parse_long(
    long: &str,
    longs: &[Long],
    rest: &mut std::slice::Iter<'_, String>,
    parsed: &mut Parsed,
) -> Result<(), Exit> {
    let (name, attached) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (long, None),
    };
    let exact = longs.iter().find(|l| l.name == name);
    let mut abbreviated = longs.iter().filter(|l| l.name.starts_with(name));
    let found = exact.or_else(|| match (abbreviated.next(), abbreviated.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    });
    let Some(option) = found else {
        return Err(Exit::usage(format!("invalid option '{long}'")));
    };
    let argument = match (option.has_argument, attached) {
        (false, None) => None,
        (false, Some(_)) => return Err(Exit::usage(format!("invalid option '{long}'"))),
        (true, Some(value)) => Some(value),
        (true, None) => match rest.next() {
            Some(next) => Some(next.clone()),
            None => return Err(Exit::usage(format!("missing argument for '{name}' option"))),
        },
    };
    parsed.options.push((option.letter, argument));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_and_operands_mix() {
        let parsed = parse(&args("a -Hp -o name,used b -d1 -- -c"), "HPo:pd:", &[]).expect("valid");
        assert_eq!(parsed.operands, ["a", "b", "-c"]);
        assert!(parsed.has('H') && parsed.has('p') && !parsed.has('P'));
        assert_eq!((parsed.value('o'), parsed.value('d')), (Some("name,used"), Some("1")));
    }

    #[test]
    fn posixly_correct_ends_the_options_at_the_first_operand() {
        let variables = vec![(environment::POSIX.into(), "".into())];
        let line = args("-H a -p b");
        let parsed = environment::lend(variables, || parse(&line, "Hp", &[])).expect("valid");
        assert_eq!(parsed.operands, ["a", "-p", "b"]);
        assert_eq!(parsed.options, [('H', None)]);
    }

    #[test]
    fn wrong_options_have_openzfs_wording() {
        for (line, want) in [
            ("-Z", "invalid option 'Z'"),
            ("-?", "invalid option '?'"),
            ("-o", "missing argument for 'o' option"),
            ("--nope", "invalid option 'nope'"),
        ] {
            let error = parse(&args(line), ":ho:", &[Long::flag("json", 'j')]);
            assert_eq!(error, Err(Exit::usage(want)), "{line}");
        }
    }

    #[test]
    fn long_options_may_be_abbreviated() {
        let longs = [Long::flag("json", 'j'), Long::flag("json-int", 'i')];
        let letters = |line: &str| parse(&args(line), "", &longs).map(|p| p.options);
        assert_eq!(letters("--json"), Ok(vec![('j', None)]));
        assert_eq!(letters("--json-i"), Ok(vec![('i', None)]));
    }
}
