//! `zdb -E`: decodes a block pointer with embedded data, given as sixteen words.

use cenote_codec::compress::{Compression, decompress};
use cenote_ondisk::blkptr::BlockPtr;

use super::Options;
use crate::err;
use crate::io::{CommandResult, Exit, Io};

/// Decodes the pointer in the first operand, and prints the bytes that it holds.
pub(super) fn run(options: &Options, io: &mut Io<'_>) -> CommandResult {
    let Some(text) = options.operands.first() else {
        return Err(Exit::usage(String::new()));
    };
    let words: Option<Vec<u64>> =
        text.split(':').map(|word| u64::from_str_radix(word, 16).ok()).collect();
    let Some(words) = words.and_then(|words| <[u64; 16]>::try_from(words).ok()) else {
        err!(io, "invalid input format")?;
        return Err(Exit::Status(1));
    };
    let pointer = BlockPtr::from_words(words);
    let Some(payload) = pointer.embedded_payload() else {
        return Err(Exit::failed("the block pointer holds no data"));
    };
    let lsize = pointer.embedded_lsize();
    let mut block = vec![0; lsize as usize];
    let compression = Compression::from_id(pointer.compression_id())
        .ok_or_else(|| Exit::failed("the block pointer names no compression"))?;
    decompress(compression, payload.as_bytes(), &mut block)
        .map_err(|error| Exit::failed(error.to_string()))?;
    Ok(io.out.write_all(&block)?)
}
