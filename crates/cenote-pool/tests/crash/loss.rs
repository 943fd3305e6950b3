//! What a power cut leaves of the writes that no flush has covered.

use cenote_rt::Rng;

/// Which sectors of the writes in flight reach the device: none, all, or any.
pub(crate) fn keep(sample: usize, salt: u64, write: usize, sector: u64) -> bool {
    match sample {
        0 => false,
        1 => true,
        // Whole writes get lost more often than sectors of one. Writes go to one device each, so
        // what is lost on one says nothing of another.
        _ => {
            let write_coin = Rng::seeded(salt ^ write as u64).next_u64() % 3;
            let sector_coin = Rng::seeded(salt ^ (write as u64) << 32 ^ sector).next_u64() % 2;
            write_coin == 0 || (write_coin == 1 && sector_coin == 0)
        }
    }
}
