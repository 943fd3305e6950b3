//! Choosing the uberblock, and how far back to go when it leads nowhere (spec 01 §7.2, §16.4).

use cenote_ondisk::uberblock::Uberblock;

use super::OpenError;

/// The first txg of any pool.
const TXG_INITIAL: u64 = 4;
/// Blocks freed in the last so many txgs were not yet given out again.
pub(super) const SAFE_TXGS: u64 = 2;

/// How far to rewind when the newest state cannot be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rewind {
    /// Not at all.
    #[default]
    Never,
    /// As far as is safe: freed blocks of the last txgs still hold their data.
    Safe,
    /// As far as there are uberblocks; older ones may lead to blocks that were written over.
    Extreme,
}

/// The best of the uberblocks of `max_txg` or before.
pub(super) fn best(candidates: &[Uberblock], max_txg: u64) -> Result<Uberblock, OpenError> {
    let newest = candidates.iter().max_by_key(|uberblock| uberblock.rank());
    let best = candidates
        .iter()
        .filter(|uberblock| uberblock.txg <= max_txg && uberblock.txg != 0)
        .max_by_key(|uberblock| uberblock.rank());
    match (best, newest) {
        (Some(best), Some(newest)) if best.raidz_reflow_info != newest.raidz_reflow_info => {
            Err(OpenError::ReflowProgress { txg: best.txg })
        }
        (Some(best), _) => Ok(*best),
        _ => Err(OpenError::NoUberblock { max_txg }),
    }
}

/// The largest txg to try after the state of `failed` could not be opened; `newest` is the txg of
/// the first attempt. None if there is nothing left that may be tried.
pub(super) fn next_max_txg(rewind: Rewind, newest: u64, failed: u64) -> Option<u64> {
    let lowest = match rewind {
        Rewind::Never => return None,
        Rewind::Safe => newest.saturating_sub(SAFE_TXGS),
        Rewind::Extreme => TXG_INITIAL,
    };
    failed.checked_sub(1).filter(|max_txg| *max_txg >= lowest.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_ondisk::uberblock::Uberblock;

    fn uberblock(txg: u64, reflow: u64) -> Uberblock {
        let mut words = [0; 27];
        (words[0], words[2], words[26]) = (0x00ba_b10c, txg, reflow);
        Uberblock::from_words(&words).unwrap()
    }

    #[test]
    fn the_newest_that_is_allowed() {
        let all = [uberblock(7, 0), uberblock(9, 0), uberblock(8, 0)];
        assert_eq!(best(&all, u64::MAX).unwrap().txg, 9);
        assert_eq!(best(&all, 8).unwrap().txg, 8);
        assert_eq!(best(&all, 6), Err(OpenError::NoUberblock { max_txg: 6 }));
        let moved = [uberblock(7, 0), uberblock(9, 1)];
        assert_eq!(best(&moved, 8), Err(OpenError::ReflowProgress { txg: 7 }));
    }

    #[test]
    fn rewinding_ends() {
        assert_eq!(next_max_txg(Rewind::Never, 100, 100), None);
        assert_eq!(next_max_txg(Rewind::Safe, 100, 100), Some(99));
        assert_eq!(next_max_txg(Rewind::Safe, 100, 98), None);
        assert_eq!(next_max_txg(Rewind::Extreme, 100, 98), Some(97));
        assert_eq!(next_max_txg(Rewind::Extreme, 100, 4), None);
    }
}
