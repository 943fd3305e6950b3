//! Partly encrypted blocks: dnodes and the intent log.
//!
//!     block   | head | body | head |  body  | head | ...
//!                |      |      |       |
//!     aad     [head][head][head]...    |        clear, but covered by the tag
//!     message        [body][body]...            one AEAD message, written back in place
//!
//! [`Pieces`] is the map of one block: the authenticated bytes, and the ranges of the message.

use std::ops::Range;

use zeroize::Zeroizing;

use super::{Cipher, CryptError, IV_BYTES, MAC_BYTES};

/// Which bytes of a block are authenticated and which are encrypted.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) aad: Vec<u8>,
    sealed: Vec<Range<usize>>,
}

impl Pieces {
    /// Adds bytes that stay plaintext.
    pub(super) fn clear(&mut self, bytes: &[u8]) {
        self.aad.extend_from_slice(bytes);
    }

    /// Adds a range that is encrypted; ranges come in order and do not overlap.
    pub(super) fn seal(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.sealed.push(range);
        }
    }

    #[cfg(test)]
    pub(super) fn sealed(&self) -> &[Range<usize>] {
        &self.sealed
    }

    pub(super) fn encrypt(
        &self,
        cipher: &Cipher,
        iv: &[u8; IV_BYTES],
        data: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        let mut message = self.gather(data);
        let mac = cipher.encrypt(iv, &self.aad, &mut message)?;
        self.scatter(&message, data);
        Ok(mac)
    }

    /// Leaves `data` untouched after an error.
    pub(super) fn decrypt(
        &self,
        cipher: &Cipher,
        iv: &[u8; IV_BYTES],
        mac: &[u8; MAC_BYTES],
        data: &mut [u8],
    ) -> Result<(), CryptError> {
        let mut message = self.gather(data);
        cipher.decrypt(iv, &self.aad, &mut message, mac)?;
        self.scatter(&message, data);
        Ok(())
    }

    fn gather(&self, data: &[u8]) -> Zeroizing<Vec<u8>> {
        let len = self.sealed.iter().map(ExactSizeIterator::len).sum();
        let mut message = Zeroizing::new(Vec::with_capacity(len));
        for range in &self.sealed {
            message.extend_from_slice(data.get(range.clone()).unwrap_or_default());
        }
        message
    }

    fn scatter(&self, mut message: &[u8], data: &mut [u8]) {
        for range in &self.sealed {
            let Some((piece, rest)) = message.split_at_checked(range.len()) else { return };
            if let Some(place) = data.get_mut(range.clone()) {
                place.copy_from_slice(piece);
            }
            message = rest;
        }
    }
}
