//! A minimal HTTP server: one request, one answer, close.
//!
//! It shows nothing that `zpool` and `zfs` would not show to every user, and changes nothing: every
//! client of the socket may read. Clients that send too much or too slowly are disconnected.
//!
//! A web site that a user of this machine visits may give its own name the address of this machine,
//! and the browser then takes this server for that site. So a server that only this machine can
//! reach answers no request that names another host.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cenote_rt::monotonic;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{Shutdown, shutdown};

use crate::daemon::accept::{self, Service, Shares, SpareDescriptors};

/// Maximum numbers of concurrent clients.
const SHARES: Shares = Shares { trusted: 8, others: 16, each: 8 };
/// Maximum length of a request.
const REQUEST_MAX: u64 = 8 << 10;
/// Deadline for a client to send its request and read the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a browser may load for a page: files of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'";

/// Returns the page at a path, with its content type.
pub(super) type Page = dyn Fn(&str) -> Option<(&'static str, String)> + Send + Sync;

/// Serves a Unix socket that every user may open.
pub(super) fn serve_unix(path: &Path, page: &Arc<Page>) -> std::io::Result<()> {
    // The daemon holds its lock: an existing socket is stale.
    std::fs::remove_file(path).ok();
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    let accept = move || {
        let stream = listener.accept()?.0;
        let uid = socket_peercred(&stream).map_or(u32::MAX, |peer| peer.uid.as_raw());
        Ok((stream, uid))
    };
    let clients = Clients { accept, page: Arc::clone(page), is_local: false };
    accept::serve("metrics", SHARES, Arc::new(clients), SpareDescriptors::default())
}

/// Serves `HOST:PORT`; users are unknown there.
pub(super) fn serve_tcp(address: &str, page: &Arc<Page>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let is_local = listener.local_addr()?.ip().is_loopback();
    let accept = move || Ok((listener.accept()?.0, u32::MAX));
    let shares = Shares { each: SHARES.others, ..SHARES };
    let clients = Clients { accept, page: Arc::clone(page), is_local };
    accept::serve("metrics", shares, Arc::new(clients), SpareDescriptors::default())
}

/// The clients of a socket.
struct Clients<A> {
    accept: A,
    page: Arc<Page>,
    /// Only programs of this machine can connect, by network.
    is_local: bool,
}

impl<A, S> Service for Clients<A>
where
    A: Fn() -> std::io::Result<(S, u32)> + Send + Sync + 'static,
    S: Read + Write + AsFd + Send + 'static,
{
    type Stream = S;

    fn accept(&self) -> std::io::Result<(S, u32)> {
        (self.accept)()
    }

    fn serve(&self, stream: S) {
        let mut stream = Timed { stream, deadline: monotonic() + TIMEOUT };
        // A client that disconnects needs no answer.
        if answer(&mut stream, &*self.page, self.is_local).is_ok() {
            shutdown(&stream.stream, Shutdown::Write).ok();
        }
    }

    fn refuse(&self, stream: S) {
        drop(stream);
    }
}

/// A connection with a total deadline, however often bytes arrive.
struct Timed<S> {
    stream: S,
    deadline: Duration,
}

impl<S: AsFd> Timed<S> {
    fn limit(&self, direction: Timeout) -> std::io::Result<()> {
        let left = self.deadline.saturating_sub(monotonic());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(&self.stream, direction, Some(left))?)
    }
}

impl<S: Read + AsFd> Read for Timed<S> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Recv)?;
        self.stream.read(into)
    }
}

impl<S: Write + AsFd> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Send)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: &mut (impl Read + Write), page: &Page, is_local: bool) -> std::io::Result<()> {
    let request = request(stream)?;
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let is_foreign = is_local && !names_this_machine(&request);
    let found = if is_foreign { None } else { page(path) };
    let (status, kind, body) = match (method, found) {
        _ if is_foreign => {
            ("403 Forbidden", "text/plain", "not the name of this host\n".to_owned())
        }
        ("GET" | "HEAD", Some((kind, body))) => ("200 OK", kind, body),
        ("GET" | "HEAD", None) => ("404 Not Found", "text/plain", "not found\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: {POLICY}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// Whether a request names this machine as its host, by address or as `localhost`, or no host.
fn names_this_machine(request: &str) -> bool {
    let hosts = request.lines().skip(1).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let is_here = |host: &str| {
        let host = match host.strip_prefix('[') {
            Some(six) => six.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
    };
    hosts.into_iter().all(is_here)
}

/// Reads the head of a request, to its empty line.
fn request(stream: &mut impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut limited = stream.take(REQUEST_MAX);
    let mut piece = [0; 1024];
    while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = limited.read(&mut piece)?;
        if count == 0 {
            return Err(std::io::Error::other("no end of the request"));
        }
        bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends a request and collects the answer.
    struct Client {
        asks: std::io::Cursor<Vec<u8>>,
        hears: Vec<u8>,
    }

    impl Read for Client {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let some = into.len().min(7);
            self.asks.read(&mut into[..some])
        }
    }

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.hears.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn heard(asked: &str) -> Option<String> {
        heard_by(asked, false)
    }

    fn heard_by(asked: &str, is_local: bool) -> Option<String> {
        let asks = std::io::Cursor::new(asked.as_bytes().to_vec());
        let mut client = Client { asks, hears: Vec::new() };
        let page = |path: &str| (path == "/x").then(|| ("text/plain", "all\n".to_owned()));
        answer(&mut client, &page, is_local).ok()?;
        Some(String::from_utf8(client.hears).expect("UTF-8"))
    }

    #[test]
    fn http_of_this_machine_refuses_other_names() {
        for (host, is_answered) in [
            ("Host: localhost:9134\r\n", true),
            ("host: 127.0.0.1\r\n", true),
            ("Host: [::1]:9134\r\n", true),
            ("", true),
            ("Host: example.org\r\n", false),
            ("Host: 127.0.0.1.example.org:9134\r\n", false),
            ("Host: localhost\r\nHost: example.org\r\n", false),
            ("Host:\r\n", false),
        ] {
            let asked = format!("GET /x HTTP/1.1\r\n{host}\r\n");
            let said = heard_by(&asked, true).expect("an answer");
            let status = if is_answered { "200" } else { "403" };
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {said}");
            assert!(heard(&asked).expect("an answer").starts_with("HTTP/1.1 200 "), "{host}");
        }
    }

    #[test]
    fn http_serves_known_pages_only() {
        let said = heard("GET /x?a=b HTTP/1.1\r\nHost: a\r\n\r\n").expect("an answer");
        assert!(
            said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\nall\n"),
            "{said}"
        );
        let said = heard("HEAD /x HTTP/1.0\r\n\r\n").expect("an answer");
        assert!(said.contains("Content-Length: 4\r\n") && said.ends_with("\r\n\r\n"), "{said}");
        for (asked, status) in [
            ("GET /y HTTP/1.1\r\n\r\n", "404"),
            ("POST /x HTTP/1.1\r\n\r\n", "405"),
            ("\r\n\r\n", "405"),
        ] {
            let said = heard(asked).expect("an answer");
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{asked}: {said}");
        }
        assert_eq!(heard("GET /x HTTP/1.1\r\n"), None);
        assert_eq!(heard(&"x".repeat(REQUEST_MAX as usize + 1)), None);
    }
}
