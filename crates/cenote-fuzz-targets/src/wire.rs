//! Requests of NBD clients over the network, and of kernels over the FUSE device.

use std::fs::File;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

use cenote_serve::nbd::options::{self, HEADER_LEN, InfoRequest, MetaRequest, OptionKind};
use cenote_serve::nbd::wire::{REQUEST_LEN, Request};

/// Requests and options of an NBD client, as one stream and one by one.
pub fn nbd(bytes: &[u8]) {
    for chunk in bytes.chunks(REQUEST_LEN) {
        if let Ok(request) = Request::decode(chunk) {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
            black_box(request.command.flags());
        }
    }
    option_data(bytes);
    let mut rest = bytes;
    while let Some((header, behind)) = rest.split_at_checked(HEADER_LEN) {
        let Ok((kind, len)) = options::decode_header(header) else { break };
        let Some((data, behind)) = behind.split_at_checked(len as usize) else { break };
        let again = options::encode_option(kind, data);
        assert_eq!(options::decode_header(&again[..HEADER_LEN]), Ok((kind, len)));
        assert_eq!(&again[HEADER_LEN..], data);
        option_data(data);
        rest = behind;
    }
    if let Some(flags) = bytes.first_chunk() {
        black_box(options::decode_client_flags(*flags));
    }
}

/// Requests of a kernel, one after the other; the first number of each is its length.
pub fn fuse(bytes: &[u8]) {
    static NOWHERE: OnceLock<Arc<std::os::fd::OwnedFd>> = OnceLock::new();
    let nowhere = NOWHERE.get_or_init(|| {
        let file = File::options().write(true).open("/dev/null");
        Arc::new(file.expect("/dev/null takes answers").into())
    });
    let mut rest = bytes;
    while let Some(len) = rest.first_chunk() {
        let len = (u32::from_ne_bytes(*len) as usize).clamp(4, rest.len());
        let (message, behind) = rest.split_at(len);
        cenote_serve::fuse::take_apart(nowhere, message);
        rest = behind;
    }
}

fn option_data(data: &[u8]) {
    black_box(options::decode_name(data).is_ok());
    if let Ok(info) = InfoRequest::decode(data) {
        assert_eq!(info.encode(), data);
    }
    if let Ok(meta) = MetaRequest::decode(data) {
        assert_eq!(meta.encode(), data);
    }
    black_box(options::encode_reply(OptionKind::Go, options::reply::INFO, data));
}
