//! Stream sockets for servers, Unix and TCP.
//!
//!     Listener --accept--> Receiver   whole messages, read ahead into a small buffer
//!                          Sender     pieces that go out one behind the other, uncopied
//!
//! The halves are independent of each other. Both together can be encrypted from some byte on
//! (`encrypt`, with the feature `tls`).

#[cfg(feature = "tls")]
mod tls;

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener, tcp, unix};

use crate::{Error, Kind, Result};

#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError, encrypt};

/// Bytes that are read ahead.
const BUFFER: usize = 64 << 10;
/// Maximum number of pieces sent with one call.
const PIECES_MAX: usize = 64;

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`; port 0 selects any free port.
    Tcp(String),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// A listening socket. A Unix socket's path is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Starts listening. A Unix socket on which no process listens any more is replaced.
    ///
    /// # Errors
    /// `Kind::Busy` if another process is listening there; `Kind::Io`.
    pub async fn bind(address: &Address) -> Result<Self> {
        match address {
            Address::Unix(path) => {
                if is_left_over(path) {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                let socket = Socket::Unix(UnixListener::bind(path).map_err(failed)?);
                Ok(Self { socket, address: address.clone() })
            }
            Address::Tcp(name) => {
                let socket = TcpListener::bind(name).await.map_err(failed)?;
                let address = Address::Tcp(socket.local_addr().map_err(failed)?.to_string());
                Ok(Self { socket: Socket::Tcp(socket), address })
            }
        }
    }

    /// Takes over a socket that is already listening at a path. To be called in a runtime.
    ///
    /// # Errors
    /// `Kind::Io`.
    pub fn over(socket: std::os::unix::net::UnixListener, path: PathBuf) -> Result<Self> {
        socket.set_nonblocking(true).map_err(failed)?;
        let socket = UnixListener::from_std(socket).map_err(failed)?;
        Ok(Self { socket: Socket::Unix(socket), address: Address::Unix(path) })
    }

    /// Returns its address, with the actual port.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// `Kind::Io`.
    pub async fn accept(&self) -> Result<(Receiver, Sender)> {
        let (from, to) = match &self.socket {
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept().await.map_err(failed)?;
                let (from, to) = stream.into_split();
                (From::Unix(from), To::Unix(to))
            }
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept().await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                let (from, to) = stream.into_split();
                (From::Tcp(from), To::Tcp(to))
            }
        };
        Ok((Receiver { from, buffer: vec![0; BUFFER], start: 0, end: 0 }, Sender { to }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // No client could connect to it any more.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether there is a socket on which no process is listening.
fn is_left_over(path: &Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn failed(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::AddrInUse => Kind::Busy,
        io::ErrorKind::PermissionDenied => Kind::Permission,
        _ => Kind::Io,
    };
    Error::new(kind, error)
}

#[derive(Debug)]
enum From {
    Unix(unix::OwnedReadHalf),
    Tcp(tcp::OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(tls::EncryptedFrom),
}

impl From {
    async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                #[cfg(feature = "tls")]
                Self::Tls(half) => return tls::read(half, into).await,
                Self::Unix(half) => {
                    half.readable().await?;
                    half.try_read(into)
                }
                Self::Tcp(half) => {
                    half.readable().await?;
                    half.try_read(into)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver {
    from: From,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Receiver {
    /// Fills all of `into`. Returns false if the connection has ended before the first byte.
    ///
    /// # Errors
    /// `Kind::Io`, also if the connection ends in the middle.
    pub async fn fill(&mut self, into: &mut [u8]) -> Result<bool> {
        let mut done = 0;
        while done < into.len() {
            let Some(rest) = into.get_mut(done..) else { break };
            if self.start < self.end {
                let ready = self.buffer.get(self.start..self.end).unwrap_or(&[]);
                let count = ready.len().min(rest.len());
                rest[..count].copy_from_slice(&ready[..count]);
                self.start += count;
                done += count;
                continue;
            }
            let count = if rest.len() >= BUFFER {
                let count = self.from.read(rest).await.map_err(failed)?;
                done += count;
                count
            } else {
                (self.start, self.end) = (0, 0);
                self.end = self.from.read(&mut self.buffer).await.map_err(failed)?;
                self.end
            };
            if count == 0 {
                if done == 0 {
                    return Ok(false);
                }
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(true)
    }
}

#[derive(Debug)]
enum To {
    Unix(unix::OwnedWriteHalf),
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(tls::EncryptedTo),
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    to: To,
}

impl Sender {
    /// Sends pieces, in order.
    ///
    /// # Errors
    /// `Kind::Io`: a part may have been sent.
    pub async fn send(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let mut pieces: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut pieces[..];
        // Empty pieces at the front would look like an end.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let some = rest.get(..PIECES_MAX.min(rest.len())).unwrap_or(&[]);
            let written = match &mut self.to {
                #[cfg(feature = "tls")]
                To::Tls(half) => tls::write(half, some).await,
                To::Unix(half) => {
                    half.writable().await.map_err(failed)?;
                    half.try_write_vectored(some)
                }
                To::Tcp(half) => {
                    half.writable().await.map_err(failed)?;
                    half.try_write_vectored(some)
                }
            };
            match written {
                Ok(0) => return Err(failed(io::ErrorKind::WriteZero.into())),
                Ok(count) => IoSlice::advance_slices(&mut rest, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
        }
        #[cfg(feature = "tls")]
        if let To::Tls(half) = &mut self.to {
            tls::flush(half).await.map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order() {
        crate::block_on(2, async {
            let address = Address::Tcp("127.0.0.1:0".to_owned());
            let listener = Listener::bind(&address).await.expect("a free port");
            let Address::Tcp(name) = listener.address().clone() else { return };
            let client = crate::blocking(move || {
                use std::io::{Read, Write};
                let mut stream = std::net::TcpStream::connect(name).expect("connects");
                let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
                stream.write_all(&bytes).expect("goes out");
                let mut back = vec![0; bytes.len()];
                stream.read_exact(&mut back).expect("comes back");
                assert_eq!(back, bytes);
            });
            let client = crate::spawn(client);
            let (mut receiver, mut sender) = listener.accept().await.expect("a client");
            let mut all = Vec::new();
            for len in [1, 28, 100_000, 199_971] {
                let mut part = vec![0; len];
                assert!(receiver.fill(&mut part).await.expect("bytes"));
                all.push(part);
            }
            let pieces: Vec<&[u8]> = all.iter().flat_map(|part| [&part[..], &[]]).collect();
            sender.send(&pieces).await.expect("goes back");
            assert!(!receiver.fill(&mut [0]).await.expect("the end"));
            client.await.expect("runs").expect("is content");
        })
        .expect("a runtime");
    }

    #[test]
    fn stale_socket_is_replaced() {
        let path = std::env::temp_dir().join(format!("cenote-net-{}", std::process::id()));
        drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
        assert!(path.exists());
        crate::block_on(1, async {
            let address = Address::Unix(path.clone());
            let listener = Listener::bind(&address).await.expect("replaced");
            let again = Listener::bind(&address).await.expect_err("in use");
            assert_eq!(again.kind(), Kind::Busy);
            drop(listener);
            assert!(!path.exists());
        })
        .expect("a runtime");
    }
}
