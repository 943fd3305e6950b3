//! Payloads of records.

use std::ops::Deref;

use cenote_codec::fletcher::fletcher4;
use cenote_rt::Buf;

/// The bytes of a payload with their fletcher4, which the checksum of the stream is made of: those
/// who read blocks compute it, at the same time, while the bytes are in the processor's cache.
#[derive(Debug, Clone)]
pub struct Payload {
    bytes: Buf,
    sums: [u64; 4],
}

impl Payload {
    /// A payload of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self { bytes: Buf::empty(), sums: [0; 4] }
    }

    /// The fletcher4 of the bytes.
    #[must_use]
    pub const fn sums(&self) -> [u64; 4] {
        self.sums
    }
}

impl From<Buf> for Payload {
    fn from(bytes: Buf) -> Self {
        let sums = fletcher4(&bytes);
        Self { bytes, sums }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
