//! Asks the daemon for samples, and makes frames of them.
//!
//! Figures come from the socket of metrics, which every user may read: threads of its own answer
//! there, so that neither a command that runs nor a user who may not run commands matters.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use cenote_rt::{monotonic, wall_clock};

use super::frame::{Frame, Selection};
use super::sample::Sample;

/// Longest time for an answer, and its greatest length.
const TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_MAX: usize = 64 << 20;
/// How long names are kept: datasets are renamed.
const NAMES_TIME: Duration = Duration::from_secs(10);
/// Most names in a question, whose length is bounded.
const NAMES_MAX: usize = 250;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// No process listens on the socket.
    #[error("no daemon is running")]
    NotRunning,
    /// The daemon did not answer in time.
    #[error("the daemon does not answer")]
    Silent,
    /// The daemon has no such pool.
    #[error("cannot open '{0}': no such pool")]
    NoPool(String),
    /// The answer has no figures, such as that of another version.
    #[error("the daemon's answer is not understood: {0}")]
    Answer(String),
    /// Another error of the connection.
    #[error("cannot reach the daemon: {0}")]
    Connection(#[from] std::io::Error),
}

/// The last two samples, and the names of datasets.
#[derive(Debug)]
pub(super) struct Watcher {
    socket: PathBuf,
    /// The only pool that is shown.
    pool: Option<String>,
    before: Option<Sample>,
    now: Option<(Sample, f64)>,
    /// Names by pool and object.
    names: BTreeMap<(String, u64), String>,
    names_at: Duration,
}

impl Watcher {
    pub(super) fn new(socket: PathBuf, pool: Option<String>) -> Self {
        let names = BTreeMap::new();
        Self { socket, pool, before: None, now: None, names, names_at: Duration::ZERO }
    }

    /// Takes a sample, and returns what happened since the last one.
    pub(super) fn next(&mut self, selection: Selection) -> Result<Frame, Trouble> {
        let path = match &self.pool {
            Some(pool) => format!("/top/{}.json", encoded(pool)),
            None => "/top.json".to_owned(),
        };
        let text = match (self.ask(&path)?, &self.pool) {
            (Some(text), _) => text,
            (None, Some(pool)) => return Err(Trouble::NoPool(pool.clone())),
            (None, None) => return Err(Trouble::Answer("no figures".to_owned())),
        };
        let sample = serde_json::from_str(&text);
        let sample = sample.map_err(|error| Trouble::Answer(error.to_string()))?;
        let now = (sample, wall_clock().as_secs_f64());
        self.before = self.now.replace(now).map(|(sample, _)| sample);
        self.again(selection)
    }

    /// Returns the last frame, with other rows.
    pub(super) fn again(&mut self, selection: Selection) -> Result<Frame, Trouble> {
        let Some((now, time)) = &self.now else { return Err(Trouble::Silent) };
        let mut frame = Frame::between(self.before.as_ref(), now, selection, *time);
        self.name(&mut frame);
        Ok(frame)
    }

    /// Gives the datasets of a frame their names. Without an answer they have numbers.
    fn name(&mut self, frame: &mut Frame) {
        if monotonic().saturating_sub(self.names_at) > NAMES_TIME {
            self.names.clear();
            self.names_at = monotonic();
        }
        let mut unknown: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for row in &frame.datasets {
            let Some(object) = row.object else { continue };
            if !self.names.contains_key(&(row.pool.clone(), object)) {
                unknown.entry(row.pool.clone()).or_default().push(object);
            }
        }
        for (pool, objects) in unknown {
            for some in objects.chunks(NAMES_MAX) {
                self.ask_names(&pool, some);
            }
        }
        for row in &mut frame.datasets {
            let Some(object) = row.object else { continue };
            let name = self.names.get(&(row.pool.clone(), object));
            row.name = name.cloned().unwrap_or_else(|| format!("{}: object {object}", row.pool));
        }
    }

    fn ask_names(&mut self, pool: &str, objects: &[u64]) {
        let list: Vec<_> = objects.iter().map(u64::to_string).collect();
        let path = format!("/top/{}/names/{}.json", encoded(pool), list.join(","));
        let Ok(Some(text)) = self.ask(&path) else { return };
        let names = serde_json::from_str::<BTreeMap<String, String>>(&text).unwrap_or_default();
        for (object, name) in names {
            if let Ok(object) = object.parse() {
                self.names.insert((pool.to_owned(), object), name);
            }
        }
    }

    /// Returns the page at a path; `None` if there is none.
    fn ask(&self, path: &str) -> Result<Option<String>, Trouble> {
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Trouble::NotRunning,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Trouble::Silent,
            // The daemon ended, or had too many clients.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                Trouble::Silent
            }
            _ => Trouble::Connection(error),
        };
        let answer = exchange(&self.socket, path).map_err(failed)?;
        let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Err(Trouble::Silent) };
        match head.split(' ').nth(1) {
            Some("200") => Ok(Some(body.to_owned())),
            Some("404") => Ok(None),
            _ => Err(Trouble::Answer(head.lines().next().unwrap_or_default().to_owned())),
        }
    }
}

/// Sends a request, and returns the whole answer.
fn exchange(socket: &std::path::Path, path: &str) -> std::io::Result<String> {
    let end = monotonic() + TIMEOUT;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = end.saturating_sub(monotonic());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_MAX {
            return Err(std::io::Error::other("the answer is too long"));
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns a name as a part of a path.
fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}
