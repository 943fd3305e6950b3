//! Reading a key from the place that the property `keylocation` names: a file, or a web server
//! (zfsprops(7)).
//!
//! As for keys that are typed, the process that received the command reads it: with the rights, the
//! variables and the network of the user who wants the key.

use std::io::{Error, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::argument;
use crate::io::words;
use crate::key_input::KEY_MAX;

/// Time in which a server must have answered whole.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest file of certificates that is read.
const PEM_MAX: u64 = 16 << 20;
/// Variables that name certificates which a server is checked by, a file and a folder; and the
/// certificate and key that it gets, if it wants them.
const CA_FILE: &str = "SSL_CA_CERT_FILE";
const CA_FOLDER: &str = "SSL_CA_CERT_PATH";
const CLIENT_CERTIFICATE: &str = "SSL_CLIENT_CERT_FILE";
const CLIENT_KEY: &str = "SSL_CLIENT_KEY_FILE";

/// Where a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyPlace<'a> {
    /// The caller has it.
    Prompt,
    /// In this file.
    File(&'a str),
    /// At this address.
    Url(&'a str),
}

impl<'a> KeyPlace<'a> {
    /// Returns the place that a value of `keylocation` names, if it is one.
    pub(crate) fn of(location: &'a str) -> Option<Self> {
        match location.split_once("://") {
            Some(("file", file)) => Some(Self::File(file)),
            Some(("https" | "http", _)) => Some(Self::Url(location)),
            _ => (location == "prompt").then_some(Self::Prompt),
        }
    }
}

/// Reads the key at a location other than `prompt`, up to the largest possible one.
///
/// # Errors
/// OpenZFS's words for it.
pub fn read_key_at(location: &str) -> Result<Vec<u8>, String> {
    match KeyPlace::of(location) {
        Some(KeyPlace::File(file)) => read_key_file(file)
            .map_err(|error| format!("Failed to open key material file: {}", words(&error))),
        // The library panics if the client's key does not belong to its certificate.
        Some(KeyPlace::Url(url)) => std::panic::catch_unwind(|| fetch(url))
            .unwrap_or_else(|_| Err(format!("Failed to connect to {url}"))),
        Some(KeyPlace::Prompt) | None => Err("Invalid keylocation.".to_owned()),
    }
}

/// Reads a key file, up to the largest possible key.
pub(crate) fn read_key_file(file: &str) -> std::io::Result<Vec<u8>> {
    let mut material = Vec::new();
    std::fs::File::open(argument::path(file))?.take(KEY_MAX).read_to_end(&mut material)?;
    Ok(material)
}

/// Gets a key from a web server.
fn fetch(url: &str) -> Result<Vec<u8>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("Failed to connect to {url}: {why}");
    // Also for an address without TLS: it may lead to another one.
    let config = Agent::config_builder().timeout_global(Some(TIMEOUT));
    let config = config.tls_config(tls().map_err(|error| failed(&error))?);
    let agent: Agent = config.build().into();
    let answer = agent.get(url).call().map_err(|error| match error {
        ureq::Error::StatusCode(status) => format!("Couldn't GET {url}: {status}"),
        error => failed(&error),
    })?;
    let mut material = Vec::new();
    let body = answer.into_body().into_reader().take(KEY_MAX).read_to_end(&mut material);
    body.map_err(|error| failed(&error))?;
    Ok(material)
}

fn tls() -> std::io::Result<TlsConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    let (file, folder) = (named(CA_FILE), named(CA_FOLDER));
    let roots = if file.is_none() && folder.is_none() {
        let system = rustls_native_certs::load_native_certs().certs;
        system.iter().map(|found| Certificate::from_der(found).to_owned()).collect()
    } else {
        let mut roots: Vec<_> = file.map(|file| pem(&file)).transpose()?.unwrap_or_default();
        if let Some(folder) = folder {
            for entry in std::fs::read_dir(folder)? {
                // Other files may be there, too.
                roots.extend(pem(&entry?.path()).unwrap_or_default());
            }
        }
        roots.into_iter().filter_map(certificate).collect()
    };
    let mut config = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::Specific(Arc::new(roots)));
    if let Some(file) = named(CLIENT_CERTIFICATE) {
        let chain: Vec<_> = pem(&file)?.into_iter().filter_map(certificate).collect();
        if chain.is_empty() {
            return Err(Error::other("the client has no certificate"));
        }
        let key = pem(&named(CLIENT_KEY).unwrap_or(file))?;
        let key = key.into_iter().find_map(private_key);
        let key = key.ok_or_else(|| Error::other("the client has no private key"))?;
        config = config.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(config.build())
}

/// Returns what a file of certificates and keys holds.
fn pem(file: &std::path::Path) -> std::io::Result<Vec<PemItem<'static>>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(PEM_MAX).read_to_end(&mut bytes)?;
    parse_pem(&bytes).map(|item| item.map_err(Error::other)).collect()
}

fn certificate(item: PemItem<'static>) -> Option<Certificate<'static>> {
    match item {
        PemItem::Certificate(found) => Some(found),
        _ => None,
    }
}

fn private_key(item: PemItem<'static>) -> Option<PrivateKey<'static>> {
    match item {
        PemItem::PrivateKey(found) => Some(found),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with these bytes; returns the address.
    fn server(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            // The client may have had enough of it.
            let _ = stream.write_all(&answer);
        });
        format!("http://{address}/key")
    }

    #[test]
    fn places_are_told_by_their_scheme() {
        use KeyPlace as P;
        for (location, place) in [
            ("prompt", Some(P::Prompt)),
            ("file:///key", Some(P::File("/key"))),
            ("https://h/key", Some(P::Url("https://h/key"))),
            ("http://h/key", Some(P::Url("http://h/key"))),
            ("ftp://h/key", None),
            ("none", None),
        ] {
            assert_eq!(P::of(location), place, "{location}");
        }
    }

    #[test]
    fn keys_come_from_a_web_server() {
        let ok = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        let fetched = |answer: Vec<u8>| fetch(&server(answer));
        assert_eq!(fetched([&ok[..], b"password"].concat()).unwrap(), b"password");
        // What never ends is not read to its end.
        let endless = [&ok[..], &vec![7; 1 << 20]].concat();
        assert_eq!(fetched(endless).unwrap().len() as u64, KEY_MAX);
        let missing = fetched(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec());
        assert!(missing.clone().unwrap_err().ends_with(": 404"), "{missing:?}");
        let garbage = fetched(b"\xff\xfe\r\n\r\n".to_vec()).unwrap_err();
        assert!(garbage.starts_with("Failed to connect to http://127.0.0.1:"), "{garbage}");
    }
}
