//! Where a command takes its pools from: directories, devices, and keys.
//!
//! `cenote zpool|zfs [--embedded -d DIR]... [-k DATASET=KEYFILE]... VERB …` opens pools in this
//! process; the own verbs have `-d`, `-p` and `-k` among their options. A source only collects
//! what was asked for; nothing is opened until a command wants a pool.

use crate::io::Exit;

/// What the command line says about where pools are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Directories and devices to look in, in order (`-d`, `-p`).
    pub paths: Vec<String>,
    /// Key files by dataset (`-k DATASET=KEYFILE`).
    pub keys: Vec<(String, String)>,
    /// Whether pools are opened in this process.
    pub embedded: bool,
}

impl Source {
    /// Takes `DATASET=KEYFILE`.
    pub fn add_key(&mut self, text: &str) -> Result<(), Exit> {
        let (dataset, file) = text
            .split_once('=')
            .ok_or_else(|| Exit::usage(format!("'{text}' is not of the form DATASET=KEYFILE")))?;
        self.keys.push((dataset.to_owned(), file.to_owned()));
        Ok(())
    }

    /// Takes the leading `--embedded`, `-d` and `-k` off the arguments of `zpool` or `zfs`.
    pub fn take_leading(args: &[String]) -> Result<(Self, &[String]), Exit> {
        let mut source = Self::default();
        let mut rest = args;
        loop {
            rest = match rest {
                [flag, tail @ ..] if flag == "--embedded" => {
                    source.embedded = true;
                    tail
                }
                [flag, value, tail @ ..] if source.embedded && flag == "-d" => {
                    source.paths.push(value.clone());
                    tail
                }
                [flag, value, tail @ ..] if source.embedded && flag == "-k" => {
                    source.add_key(value)?;
                    tail
                }
                [flag] if source.embedded && (flag == "-d" || flag == "-k") => {
                    return Err(Exit::usage(format!(
                        "missing argument for '{}' option",
                        &flag[1..]
                    )));
                }
                _ => return Ok((source, rest)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_before_the_verb_are_ours() {
        let args: Vec<String> = [
            "--embedded",
            "-d",
            "/a",
            "-k",
            "p/x=/key",
            "--embedded",
            "-d",
            "/b",
            "list",
            "-d",
            "1",
        ]
        .map(str::to_owned)
        .to_vec();
        let (source, rest) = Source::take_leading(&args).expect("valid");
        assert_eq!(source.paths, ["/a", "/b"]);
        assert_eq!(source.keys, [("p/x".to_owned(), "/key".to_owned())]);
        assert_eq!(rest, ["list", "-d", "1"]);
    }
}
