//! Chooses the uberblock, and how far to rewind if it cannot be opened (spec 01 §7.2, §16.4).

use cenote_ondisk::uberblock::Uberblock;

use super::OpenError;

/// The first txg of any pool.
const TXG_INITIAL: u64 = 4;
/// Blocks freed in this number of last txgs are not reused yet.
pub(super) const SAFE_TXGS: u64 = 2;

/// How far to rewind if the newest state cannot be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rewind {
    /// Not at all.
    #[default]
    Never,
    /// As far as is safe: blocks freed in the last txgs still hold their data.
    Safe,
    /// To any uberblock; blocks of old ones may be overwritten.
    Extreme,
}

/// Returns the best uberblock with a txg of at most `max_txg`.
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

/// Returns the largest txg to try after the state of txg `failed` could not be opened, `None` if no
/// other may be tried; `newest` is the txg of the first attempt.
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
    fn best_uberblock_is_the_newest_permitted() {
        let all = [uberblock(7, 0), uberblock(9, 0), uberblock(8, 0)];
        assert_eq!(best(&all, u64::MAX).unwrap().txg, 9);
        assert_eq!(best(&all, 8).unwrap().txg, 8);
        assert_eq!(best(&all, 6), Err(OpenError::NoUberblock { max_txg: 6 }));
        let moved = [uberblock(7, 0), uberblock(9, 1)];
        assert_eq!(best(&moved, 8), Err(OpenError::ReflowProgress { txg: 7 }));
    }

    #[test]
    fn rewind_stops_at_its_limit() {
        assert_eq!(next_max_txg(Rewind::Never, 100, 100), None);
        assert_eq!(next_max_txg(Rewind::Safe, 100, 100), Some(99));
        assert_eq!(next_max_txg(Rewind::Safe, 100, 98), None);
        assert_eq!(next_max_txg(Rewind::Extreme, 100, 98), Some(97));
        assert_eq!(next_max_txg(Rewind::Extreme, 100, 4), None);
    }
}
