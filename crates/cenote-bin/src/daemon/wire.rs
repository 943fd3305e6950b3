//! Messages between a command's process (the client) and the daemon.
//!
//! ```text
//!   request: u32 magic | u32 bytes that follow | u32 variables | u32 words | words
//!     word: u32 length | bytes
//!   answers: u8 kind | u32 length | bytes                                     (little-endian)
//!     accepted ──> output, errors, asking for a key or input (the client replies) ... ──> status
//!     busy, ending ──> the request was not run: the client may send it again
//!     refused  ──> it was not run, and never will be
//! ```
//!
//! Words are the names and values of environment variables, the working directory, the tool, and
//! its arguments. The daemon does not trust its clients: requests have a maximum length, and the
//! kernel identifies the sender. The client's own process writes to its standard output, so the
//! daemon never uses a descriptor of another user.
//!
//! Guarantees
//! * ONCE-1  The daemon sends *accepted* before it runs any part of a command. A client that has
//!   not received it when the connection ends may send the request again; one that has received it
//!   never does.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use cenote_cli::environment::Variables;

/// Start of a request: "cen4".
const MAGIC: u32 = u32::from_le_bytes(*b"cen4");
/// Length of the header.
pub(super) const HEADER: usize = 8;
/// Maximum length of a request: that of a command line, and some more.
const BYTES_MAX: u32 = 4 << 20;

/// Maximum payload of an answer. Larger output is sent in several answers.
pub(super) const PAYLOAD_MAX: usize = 64 << 10;
/// Length of an answer's header.
pub(super) const ANSWER_HEADER: usize = 5;

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The request will be run. No payload.
    Accepted = b'a',
    /// The request was not run, and may be sent to this daemon again. The payload says why.
    Busy = b'b',
    /// The request was not run, and may be sent to the next daemon: this one is stopping.
    Ending = b'x',
    /// The request was not run. The payload says why.
    Refused = b'r',
    /// Bytes for standard output.
    Output = b'o',
    /// Bytes for standard error.
    Errors = b'e',
    /// A key is requested: `u8` whether it is raw, then the prompt. See [`Reply`].
    AskKey = b'k',
    /// The key at this value of `keylocation` is requested. See [`Reply`].
    AskKeyAt = b'l',
    /// Up to this `u32` of bytes of standard input are requested. See [`Reply`].
    AskInput = b'i',
    /// The path of this file without links, `.` and `..` is requested. See [`Reply`].
    AskPath = b'f',
    /// Scripts are to be run: a [`Request`](cenote_cli::leaf_scripts::Request). See [`Reply`].
    AskScripts = b'p',
    /// The command has ended with this `u32` status.
    Status = b's',
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Accepted,
        Self::Busy,
        Self::Ending,
        Self::Refused,
        Self::Output,
        Self::Errors,
        Self::AskKey,
        Self::AskKeyAt,
        Self::AskInput,
        Self::AskPath,
        Self::AskScripts,
        Self::Status,
    ];
}

/// Returns the header of an answer with a payload of `length` bytes, at most [`PAYLOAD_MAX`].
pub(super) fn answer_header(kind: Kind, length: usize) -> [u8; ANSWER_HEADER] {
    let [a, b, c, d] = (length as u32).to_le_bytes();
    [kind as u8, a, b, c, d]
}

/// Returns a whole answer; the payload is truncated to [`PAYLOAD_MAX`].
pub(super) fn answer(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let payload = payload.get(..PAYLOAD_MAX).unwrap_or(payload);
    [&answer_header(kind, payload.len()), payload].concat()
}

/// Reads an answer.
///
/// # Errors
/// `UnexpectedEof` if the connection ends, `InvalidData` for an invalid answer.
pub(super) fn read_answer(stream: &mut impl Read) -> std::io::Result<(Kind, Vec<u8>)> {
    let mut header = [0; ANSWER_HEADER];
    stream.read_exact(&mut header)?;
    let [kind, length @ ..] = header;
    let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
    let length = u32::from_le_bytes(length) as usize;
    let Some(kind) = kind.filter(|_| length <= PAYLOAD_MAX) else {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "not an answer"));
    };
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok((kind, payload))
}

/// Maximum length of a key or message in a reply.
pub(super) const KEY_MAX: usize = 8 << 10;
/// Maximum bytes of standard input in a reply.
pub(super) const INPUT_MAX: usize = 256 << 10;

/// The client's reply to [`Kind::AskKey`], [`Kind::AskKeyAt`], [`Kind::AskInput`],
/// [`Kind::AskPath`] and [`Kind::AskScripts`]: `u8` outcome, `u32` length, bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A key from a pipe or a file; standard input, which has ended if there are no bytes; a path;
    /// or the output of scripts.
    Read(Vec<u8>),
    /// A key that was typed at a terminal.
    Typed(Vec<u8>),
    /// Nothing could be read; with the reason.
    Failed(String),
}

impl Reply {
    /// Length of the header.
    pub(super) const HEADER: usize = 5;

    /// Returns the header and the bytes that follow.
    pub(super) fn encode(&self) -> ([u8; Self::HEADER], &[u8]) {
        let (outcome, bytes): (u8, &[u8]) = match self {
            Self::Read(bytes) => (0, bytes),
            Self::Typed(key) => (1, key),
            Self::Failed(why) => (2, why.get(..KEY_MAX).unwrap_or(why).as_bytes()),
        };
        let [a, b, c, d] = (bytes.len() as u32).to_le_bytes();
        ([outcome, a, b, c, d], bytes)
    }

    /// Returns the number of bytes after a header, if it is at most `most`.
    pub(super) fn length([_, length @ ..]: [u8; Self::HEADER], most: usize) -> Option<usize> {
        Some(u32::from_le_bytes(length) as usize).filter(|length| *length <= most)
    }

    /// Decodes a reply from its header and the bytes that follow.
    pub(super) fn decode([outcome, ..]: [u8; Self::HEADER], bytes: Vec<u8>) -> Self {
        match outcome {
            0 => Self::Read(bytes),
            1 => Self::Typed(bytes),
            _ => Self::Failed(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }
}

/// Reasons to refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRequest {
    /// Another protocol.
    #[error("a request that begins with {0:#x}")]
    Magic(u32),
    /// Longer than any command line.
    #[error("a request of {0} bytes")]
    Length(u32),
    /// Its words end outside of it, or before its end.
    #[error("a request whose words do not fill it")]
    Words,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The relevant environment variables of the caller.
    pub(super) environment: Variables,
    /// The caller's working directory.
    pub(super) folder: PathBuf,
    /// The tool and its arguments.
    pub(super) args: Vec<OsString>,
}

impl Request {
    /// Returns a request to the daemon itself.
    pub(super) fn of_daemon(verb: &str) -> Self {
        let args = vec!["daemon".into(), verb.into()];
        Self { environment: Variables::new(), folder: "/".into(), args }
    }

    /// Returns the whole message.
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

    /// Returns the number of bytes after a header.
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

    /// Parses the bytes after the header.
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
    fn answers_round_trip() {
        for kind in Kind::ALL {
            let sent = answer(kind, b"some text");
            let read = read_answer(&mut &sent[..]).expect("an answer");
            assert_eq!(read, (kind, b"some text".to_vec()));
            for end in 0..sent.len() {
                assert!(read_answer(&mut &sent[..end]).is_err(), "cut at {end}");
            }
        }
        assert_eq!(
            answer(Kind::Output, &vec![7; PAYLOAD_MAX + 1]).len(),
            ANSWER_HEADER + PAYLOAD_MAX
        );
        // A false length allocates no memory.
        let lying = [answer_header(Kind::Output, usize::MAX).to_vec(), vec![0; 9]].concat();
        assert!(read_answer(&mut &lying[..]).is_err());
        assert!(read_answer(&mut &b"?\0\0\0\0"[..]).is_err());
        let failed = Reply::Failed("no input".to_owned());
        for reply in [Reply::Read(vec![0, 255]), Reply::Typed(b"a b".to_vec()), failed] {
            let (header, bytes) = reply.encode();
            assert_eq!(Reply::length(header, KEY_MAX), Some(bytes.len()));
            assert_eq!(Reply::decode(header, bytes.to_vec()), reply);
        }
        assert_eq!(Reply::length([0, 255, 255, 255, 255], INPUT_MAX), None);
    }

    #[test]
    fn requests_round_trip() {
        let message = request().encode();
        let (header, body) = message.split_at(HEADER);
        assert_eq!(Request::length(header.try_into().expect("8 bytes")), Ok(body.len()));
        assert_eq!(Request::decode(body), Ok(request()));
    }

    #[test]
    fn invalid_requests_are_refused() {
        let message = request().encode();
        let (header, body) = message.split_at(HEADER);
        let mut header: [u8; HEADER] = header.try_into().expect("8 bytes");
        for end in 0..body.len() {
            assert_eq!(Request::decode(&body[..end]), Err(BadRequest::Words), "cut at {end}");
        }
        let longer = [body, &[0]].concat();
        assert_eq!(Request::decode(&longer), Err(BadRequest::Words));
        // False counts and lengths allocate no memory.
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
