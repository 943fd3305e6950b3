//! What a command sends to the daemon, and what it gets back.
//!
//! ```text
//!   u32 magic | u32 bytes that follow | u32 variables | u32 words | words: u32 length, bytes
//!     `- with its first byte: descriptors of stdin, stdout, stderr
//!   answer: u32 status                                                        (little-endian)
//! ```
//!
//! Words are the names and values of variables of the environment, the working directory, the tool,
//! and its arguments. The daemon trusts nobody who can
//! reach its socket: a request has a bounded length, and who sends it is told by the kernel.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use cenote_cli::environment::Variables;

/// What a request begins with: "cen2".
const MAGIC: u32 = u32::from_le_bytes(*b"cen2");
/// Bytes before the words.
pub(super) const HEADER: usize = 8;
/// The longest request: what a command line may have, and some more.
const BYTES_MAX: u32 = 4 << 20;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRequest {
    /// Somebody else's message.
    #[error("a request that begins with {0:#x}")]
    Magic(u32),
    /// It is longer than any command line.
    #[error("a request of {0} bytes")]
    Length(u32),
    /// Its words end outside it, or before its end.
    #[error("a request whose words do not fill it")]
    Words,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// What counts of the environment in which it was given.
    pub(super) environment: Variables,
    /// Where it was given.
    pub(super) folder: PathBuf,
    /// The tool and its arguments.
    pub(super) args: Vec<OsString>,
}

impl Request {
    /// What is asked of the daemon itself.
    pub(super) fn of_daemon(verb: &str) -> Self {
        let args = vec!["daemon".into(), verb.into()];
        Self { environment: Variables::new(), folder: "/".into(), args }
    }

    /// The whole message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let variables = self.environment.iter().flat_map(|(name, value)| [name, value]);
        let words: Vec<&[u8]> = variables
            .map(|word| word.as_bytes())
            .chain(std::iter::once(self.folder.as_os_str().as_bytes()))
            .chain(self.args.iter().map(|arg| arg.as_bytes()))
            .collect();
        let mut body = (self.environment.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(&(words.len() as u32).to_le_bytes());
        for word in words {
            body.extend_from_slice(&(word.len() as u32).to_le_bytes());
            body.extend_from_slice(word);
        }
        let mut message = MAGIC.to_le_bytes().to_vec();
        message.extend_from_slice(&(body.len() as u32).to_le_bytes());
        message.append(&mut body);
        message
    }

    /// How many bytes follow a header.
    pub(super) fn length(header: [u8; HEADER]) -> Result<usize, BadRequest> {
        let [a, b, c, d, rest @ ..] = header;
        let magic = u32::from_le_bytes([a, b, c, d]);
        if magic != MAGIC {
            return Err(BadRequest::Magic(magic));
        }
        let length = u32::from_le_bytes(rest);
        if length > BYTES_MAX {
            return Err(BadRequest::Length(length));
        }
        Ok(length as usize)
    }

    /// Takes the bytes behind the header apart.
    pub(super) fn decode(body: &[u8]) -> Result<Self, BadRequest> {
        let (variables, rest) = number(body)?;
        let (count, mut rest) = number(rest)?;
        let mut words = Vec::new();
        for _ in 0..count {
            let (length, after) = number(rest)?;
            let (word, after) = after.split_at_checked(length).ok_or(BadRequest::Words)?;
            words.push(OsString::from_vec(word.to_vec()));
            rest = after;
        }
        let mut words = words.into_iter();
        let mut environment = Variables::new();
        for _ in 0..variables {
            let (Some(name), Some(value)) = (words.next(), words.next()) else {
                return Err(BadRequest::Words);
            };
            environment.push((name, value));
        }
        match (words.next(), rest.is_empty()) {
            (Some(folder), true) => {
                Ok(Self { environment, folder: folder.into(), args: words.collect() })
            }
            _ => Err(BadRequest::Words),
        }
    }
}

fn number(bytes: &[u8]) -> Result<(usize, &[u8]), BadRequest> {
    let (number, rest) = bytes.split_first_chunk().ok_or(BadRequest::Words)?;
    Ok((u32::from_le_bytes(*number) as usize, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let odd = OsString::from_vec(b"tank/\xff".to_vec());
        Request {
            environment: vec![("TZ".into(), "".into()), ("A".into(), "b c".into())],
            folder: "/tmp/a b".into(),
            args: vec!["zfs".into(), "list".into(), odd, "".into()],
        }
    }

    #[test]
    fn what_is_sent_arrives() {
        let message = request().encode();
        let (header, body) = message.split_at(HEADER);
        assert_eq!(Request::length(header.try_into().expect("8 bytes")), Ok(body.len()));
        assert_eq!(Request::decode(body), Ok(request()));
    }

    #[test]
    fn nothing_else_is_a_request() {
        let message = request().encode();
        let (header, body) = message.split_at(HEADER);
        let mut header: [u8; HEADER] = header.try_into().expect("8 bytes");
        for end in 0..body.len() {
            assert_eq!(Request::decode(&body[..end]), Err(BadRequest::Words), "cut at {end}");
        }
        let longer = [body, &[0]].concat();
        assert_eq!(Request::decode(&longer), Err(BadRequest::Words));
        // Counts and lengths that lie ask for no memory.
        for field in [0, 4] {
            let mut lying = body.to_vec();
            lying[field..field + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(Request::decode(&lying), Err(BadRequest::Words));
        }
        assert_eq!(Request::decode(&[0; 8]), Err(BadRequest::Words));
        header[4..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Request::length(header), Err(BadRequest::Length(u32::MAX)));
        header[0] ^= 1;
        assert!(matches!(Request::length(header), Err(BadRequest::Magic(_))));
    }
}
