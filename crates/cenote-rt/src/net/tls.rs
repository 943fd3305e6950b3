//! TLS connections: the server's certificate, and verification of clients.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{From, Receiver, Sender, To, failed};
use crate::{Error, Kind, Result};

/// The halves of an encrypted connection.
pub(super) type EncryptedFrom = ReadHalf<TlsStream<Box<dyn Stream>>>;
pub(super) type EncryptedTo = WriteHalf<TlsStream<Box<dyn Stream>>>;

/// Streams that can be encrypted.
pub(super) trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for T {}

/// The server's certificate and key.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
/// The authority that signs the certificates of clients.
const AUTHORITY: &str = "ca-cert.pem";

/// Why a server's certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {cause}")]
struct Unusable {
    file: String,
    cause: String,
}

/// The server's certificate, key and settings.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is not shown.
        f.write_str("Tls")
    }
}

impl Tls {
    /// Loads `server-cert.pem` and `server-key.pem` from a directory, like other NBD servers. With
    /// `verifies_clients`, each client must have a certificate that is signed by one in
    /// `ca-cert.pem`.
    ///
    /// # Errors
    /// `Kind::Invalid` for a missing or invalid file.
    pub fn from_folder(folder: &Path, verifies_clients: bool) -> Result<Self> {
        let unusable = |name: &str, cause: &dyn fmt::Display| {
            let file = folder.join(name).display().to_string();
            Error::new(Kind::Invalid, Unusable { file, cause: cause.to_string() })
        };
        let certificates = |name: &str| {
            let found = CertificateDer::pem_file_iter(folder.join(name));
            let found = found.and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let found = found.map_err(|error| unusable(name, &error))?;
            if found.is_empty() {
                return Err(unusable(name, &"no certificate"));
            }
            Ok(found)
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(CERTIFICATE, &error))?;
        let config = if verifies_clients {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(AUTHORITY)? {
                roots.add(certificate).map_err(|error| unusable(AUTHORITY, &error))?;
            }
            let verifier: Arc<dyn ClientCertVerifier> =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| unusable(AUTHORITY, &error))?;
            config.with_client_cert_verifier(verifier)
        } else {
            config.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(folder.join(KEY));
        let key = key.map_err(|error| unusable(KEY, &error))?;
        let config = config.with_single_cert(certificates(CERTIFICATE)?, key);
        Ok(Self(Arc::new(config.map_err(|error| unusable(CERTIFICATE, &error))?)))
    }
}

/// Why a connection is not encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The client has sent bytes before it got the answer to its request.
    #[error("a client did not wait for the answer")]
    Early,
    /// The connection is encrypted, or these are halves of two connections.
    #[error("two halves of no connection in the clear")]
    Encrypted,
}

/// Encrypts a connection: everything from the next byte on, in both directions.
///
/// # Errors
/// `Kind::Invalid` if the client has already sent bytes that would count as encrypted; `Kind::Io`
/// if the handshake fails.
pub async fn encrypt(receiver: Receiver, sender: Sender, tls: &Tls) -> Result<(Receiver, Sender)> {
    if receiver.start < receiver.end {
        return Err(Error::new(Kind::Invalid, TlsError::Early));
    }
    let stream: Box<dyn Stream> = match (receiver.from, sender.to) {
        (From::Unix(from), To::Unix(to)) => Box::new(from.reunite(to).map_err(apart)?),
        (From::Tcp(from), To::Tcp(to)) => Box::new(from.reunite(to).map_err(apart)?),
        _ => return Err(Error::new(Kind::Invalid, TlsError::Encrypted)),
    };
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.0));
    let (from, to) = tokio::io::split(acceptor.accept(stream).await.map_err(failed)?);
    let receiver = Receiver { from: From::Tls(from), buffer: receiver.buffer, start: 0, end: 0 };
    Ok((receiver, Sender { to: To::Tls(to) }))
}

fn apart(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Invalid, error)
}

pub(super) async fn read(half: &mut EncryptedFrom, into: &mut [u8]) -> io::Result<usize> {
    half.read(into).await
}

pub(super) async fn write(half: &mut EncryptedTo, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    half.write_vectored(pieces).await
}

pub(super) async fn flush(half: &mut EncryptedTo) -> io::Result<()> {
    half.flush().await
}
