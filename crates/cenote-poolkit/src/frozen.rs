//! The pool `g-zil` before its import: with one more uberblock.

use std::path::PathBuf;

use cenote_device::{FileDevice, OpenMode};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::Result;
use cenote_vdev::labels::{slot_of, write_uberblock};

/// The root of the MOS when the log of `a` was written (spec 07 A19).
const ROOT: [u64; 16] = [
    1,
    0x983,
    1,
    0x8219,
    1,
    0x1_0156,
    0x800b_070f_0000_0007,
    0,
    0,
    0,
    0x1b,
    0x41,
    0xc_6b1f_288f,
    0x512_2729_d0c1,
    0x1_0d3d_0773_b69f,
    0x25_d280_05a6_4e1e,
];

/// Writes the uberblock of txg 27 to these devices of `g-zil`.
///
/// # Errors
/// Errors of a device.
pub async fn restore_uberblock(paths: Vec<PathBuf>) -> Result<()> {
    let found = scan(&ScanOptions { paths: paths.clone() }).await?;
    let uberblocks = found.find("g-zil").unwrap().uberblocks();
    let newest = uberblocks.iter().max_by_key(|uberblock| uberblock.txg).unwrap();
    let rootbp = BlockPtr::from_words(ROOT);
    let uberblock = Uberblock { txg: 27, timestamp: 0x6b00_ffc8, rootbp, ..*newest };
    for path in paths {
        let device = FileDevice::open(&path, OpenMode::Exclusive)?;
        write_uberblock(&*device, &uberblock, 9, slot_of(27, 9, false)).await?;
        device.flush().await?;
    }
    Ok(())
}
