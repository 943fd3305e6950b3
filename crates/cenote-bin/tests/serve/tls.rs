//! NBD over TLS: clients with and without the right certificates, and messages in the clear.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use cenote_serve::nbd::options::{InfoRequest, OptionKind, encode_option, reply};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::daemon::House;
use crate::nbd::{Raw, shed};
use crate::{Serving, Shed, has, succeeds};

/// A certificate authority, with the name of its certificate's file.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Creates a directory with this authority and its certificates, as servers and clients of NBD
    /// expect it.
    fn folder(&self, at: &Path, names: &[&str]) -> String {
        fs::create_dir_all(at).unwrap();
        fs::write(at.join("ca-cert.pem"), &self.pem).unwrap();
        for name in names {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap();
            fs::write(at.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
            fs::write(at.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        at.to_str().unwrap().to_owned()
    }
}

fn serve(shed: &Shed, address: &[&str], words: &[&str]) -> Serving {
    let folder = shed.pool();
    shed.serve(&[&["nbd", "-d", &folder], address, words, &["t"]].concat())
}

/// Returns the address of a server on a TCP port. (On Unix sockets libnbd does not verify the
/// server's name.)
fn port(serving: &Serving) -> String {
    serving.text.trim_end().rsplit(':').next().unwrap().to_owned()
}

/// Returns the URI of the volume for a client with the certificates of a directory.
fn encrypted(port: &str, certificates: &str) -> String {
    format!("nbds://localhost:{port}/t/v?tls-certificates={certificates}")
}

fn plain(port: &str) -> String {
    format!("nbd://localhost:{port}/t/v")
}

fn can_connect(locator: &str) -> bool {
    Command::new("nbdinfo").args(["--size", locator]).output().unwrap().status.success()
}

#[test]
fn nbd_tls_is_required_of_clients() {
    if !has("nbdinfo") || !has("nbdcopy") {
        return;
    }
    let shed = shed("tls-libnbd");
    let authority = Authority::new("ours");
    let ours = authority.folder(&shed.path("ours"), &["server"]);
    let with = authority.folder(&shed.path("with"), &["server", "client"]);
    let theirs = Authority::new("theirs").folder(&shed.path("theirs"), &["server", "client"]);
    let at = ["--listen", "localhost:0"];

    let serving = serve(&shed, &at, &[]);
    let to = port(&serving);
    assert!(can_connect(&plain(&to)) && !can_connect(&encrypted(&to, &ours)));
    serving.stop();

    let serving = serve(&shed, &at, &["--tls-certificates", &ours]);
    let to = port(&serving);
    assert!(serving.text.contains("nbds://"), "{}", serving.text);
    assert!(!can_connect(&plain(&to)));
    assert!(can_connect(&encrypted(&to, &ours)) && can_connect(&encrypted(&to, &with)));
    assert!(!can_connect(&encrypted(&to, &theirs)), "it is not who they trust");
    let said = succeeds(Command::new("nbdinfo").args(["--json", &encrypted(&to, &ours)]));
    assert!(said.contains("\"TLS\": true") && said.contains("\"structured\": true"), "{said}");
    let (from, back) = (shed.text("image"), shed.text("back"));
    let mut bytes = vec![0; 64 << 20];
    cenote_rt::Rng::seeded(9).fill(&mut bytes[1_000_000..40_000_000]);
    fs::write(&from, &bytes).unwrap();
    for (from, to) in [(&from, &encrypted(&to, &ours)), (&encrypted(&to, &ours), &back)] {
        succeeds(Command::new("nbdcopy").args(["--flush", "--connections=2", from, to]));
    }
    assert!(fs::read(&back).unwrap() == bytes);
    serving.stop();

    let words = ["--tls-certificates", &with, "--tls-verify-peer"];
    let serving = serve(&shed, &at, &words);
    let to = port(&serving);
    assert!(can_connect(&encrypted(&to, &with)));
    assert!(!can_connect(&encrypted(&to, &ours)), "without a certificate");
    // A client that trusts this server, with a certificate of another authority.
    for name in ["client-cert.pem", "client-key.pem"] {
        fs::copy(shed.path("theirs").join(name), shed.path("ours").join(name)).unwrap();
    }
    assert!(!can_connect(&encrypted(&to, &ours)));
    serving.stop();
    shed.judge();
}

#[test]
fn nbd_tls_serves_qemu() {
    if !has("qemu-img") {
        return;
    }
    let shed = shed("tls-qemu");
    let folder = Authority::new("ours").folder(&shed.path("ours"), &["server", "client"]);
    let words = ["--tls-certificates", &folder, "--tls-verify-peer"];
    let serving = serve(&shed, &["--listen", "localhost:0"], &words);
    let port = port(&serving);
    let secret = format!("tls-creds-x509,id=tls,endpoint=client,dir={folder}");
    let image = format!("driver=nbd,host=localhost,port={port},export=t/v,tls-creds=tls");
    let args = ["info", "--object", &secret, "--image-opts", &image];
    let said = succeeds(Command::new("qemu-img").args(args));
    assert!(said.contains("virtual size: 64 MiB"), "{said}");
    let in_the_clear = Command::new("qemu-img").args(["info", &plain(&port)]).output().unwrap();
    assert!(!in_the_clear.status.success());
    serving.stop();
}

/// Messages before the TLS handshake may be forged.
#[test]
fn nbd_tls_ignores_options_sent_in_the_clear() {
    let shed = shed("tls-clear");
    let folder = Authority::new("ours").folder(&shed.path("ours"), &["server"]);
    let (socket, path) = (shed.text("s"), shed.path("s"));
    let serving = serve(&shed, &["--socket", &socket], &["--tls-certificates", &folder]);
    let mut raw = Raw::connect(&path, 3);
    let wanted = InfoRequest { name: "t/v".to_owned(), wanted: Vec::new() }.encode();
    for (kind, data) in [
        (OptionKind::List, &[][..]),
        (OptionKind::Info, &wanted),
        (OptionKind::Go, &wanted),
        (OptionKind::StructuredReply, &[]),
        (OptionKind::Unknown(77), &[]),
    ] {
        assert_eq!(raw.option(kind, data), [reply::TLS_REQUIRED], "{kind:?}");
    }
    assert_eq!(raw.option(OptionKind::StartTls, b"x"), [reply::INVALID]);
    // The old negotiation has no negative reply.
    let mut stream = raw.into_stream();
    stream.write_all(&encode_option(OptionKind::ExportName, b"t/v")).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);

    // An option sent with the TLS request is not treated as encrypted.
    let mut stream = Raw::connect(&path, 3).into_stream();
    let both =
        [encode_option(OptionKind::StartTls, &[]), encode_option(OptionKind::StructuredReply, &[])];
    stream.write_all(&both.concat()).unwrap();
    let mut said = Vec::new();
    // The connection may be reset, since not everything was read.
    let _ = stream.read_to_end(&mut said);
    assert_eq!(said.len(), 20, "the answer to the first");
    serving.stop();

    let serving = serve(&shed, &["--socket", &socket], &[]);
    let mut raw = Raw::connect(&path, 3);
    assert_eq!(raw.option(OptionKind::StartTls, &[]), [reply::POLICY]);
    assert_eq!(raw.go("t/v"), reply::ACK);
    serving.stop();
}

#[test]
fn nbd_tls_reports_invalid_certificates() {
    let shed = shed("tls-none");
    let folder = Authority::new("ours").folder(&shed.path("ours"), &["server"]);
    let (pool, empty, socket) = (shed.pool(), shed.text("empty"), shed.text("s"));
    fs::create_dir(&empty).unwrap();
    let fails = |words: &[&str]| {
        let before = ["nbd", "-d", &pool, "--socket", &socket];
        let output = shed.cenote(&[&before, words, &["t"]].concat()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(&["--tls-verify-peer"]);
    assert!(said.contains("--tls-verify-peer goes with --tls-certificates"), "{said}");
    let said = fails(&["--tls-certificates", &empty]);
    assert!(said.contains("server-key.pem"), "{said}");
    fs::remove_file(shed.path("ours").join("ca-cert.pem")).unwrap();
    let said = fails(&["--tls-certificates", &folder, "--tls-verify-peer"]);
    assert!(said.contains("ca-cert.pem"), "{said}");
    fs::write(shed.path("ours").join("server-cert.pem"), "none").unwrap();
    let said = fails(&["--tls-certificates", &folder]);
    assert!(said.contains("server-cert.pem: no certificate"), "{said}");
}

/// The daemon's port is encrypted or not served; its Unix socket does not change.
#[test]
fn nbd_tls_on_the_daemons_port() {
    if !has("nbdinfo") {
        return;
    }
    let house = House::new("tls-daemon");
    let folder = Authority::new("ours").folder(&house.path("ours"), &["server"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let to = free.to_string();
    let start = |certificates: &str, verifies: &str| {
        let mut start = house.command(&["daemon", "start"]);
        start.env("CENOTE_NBD_LISTEN", format!("localhost:{to}"));
        start.env("CENOTE_NBD_TLS_CERTIFICATES", certificates);
        succeeds(start.env("CENOTE_NBD_TLS_VERIFY_PEER", verifies));
    };
    start(&folder, "0");
    house.create("none");
    house.run("zfs create -s -V 64M -o cenote:nbd=on t/v");
    let local = format!("nbd+unix:///t/v?socket={}", house.text("state/nbd.sock"));
    assert!(can_connect(&encrypted(&to, &folder)) && !can_connect(&plain(&to)));
    assert!(can_connect(&local));
    for (certificates, verifies) in [(house.text("none"), "0"), (String::new(), "1")] {
        house.run("daemon stop");
        start(&certificates, verifies);
        assert!(can_connect(&local));
        assert!(!can_connect(&plain(&to)) && !can_connect(&encrypted(&to, &folder)));
    }
    house.run("zpool destroy t");
    house.run("daemon stop");
}
