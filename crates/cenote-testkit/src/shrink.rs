//! Random histories, and shrinking one that fails.

use cenote_rt::{Rng, block_on};

/// Maximum number of runs to shrink a history.
const RUNS_MAX: usize = 400;

/// Removes steps that are not needed for a failure: first halves, then ever smaller parts. Any part
/// of a history must be a valid history.
pub async fn shorter<T: Clone>(mut steps: Vec<T>, fails: impl AsyncFn(&[T]) -> bool) -> Vec<T> {
    let (mut size, mut runs) = (steps.len() / 2, 0);
    while size > 0 {
        let mut at = 0;
        while at < steps.len() && runs < RUNS_MAX {
            let end = (at + size).min(steps.len());
            let without = [&steps[..at], &steps[end..]].concat();
            runs += 1;
            if fails(&without).await {
                steps = without;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    steps
}

/// Steps of a history: a seed for each, so that some can be left out.
pub fn steps(seed: u64, count: usize) -> Vec<u64> {
    let mut rng = Rng::seeded(seed);
    (0..count).map(|_| rng.next_u64()).collect()
}

/// Runs a history. One that fails is shrunk as far as possible, and run once more, so that its
/// output is the last.
///
/// # Panics
/// If the history fails.
pub fn play<T: Clone + Send + Sync>(steps: Vec<T>, history: impl Fn(&[T]) + Sync) {
    // On its own thread, so that a panic can be detected.
    let ends =
        |steps: &[T]| std::thread::scope(|scope| scope.spawn(|| history(steps)).join().is_ok());
    if ends(&steps) {
        return;
    }
    let short = block_on(1, shorter(steps, async |steps: &[T]| !ends(steps)));
    let short = short.expect("a runtime");
    let is_again = !ends(&short);
    panic!("the history fails with {} steps; again: {is_again}", short.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_stays() {
        let needed = [3, 50, 51, 99];
        let fails = async |steps: &[u32]| needed.iter().all(|step| steps.contains(step));
        let left = cenote_rt::block_on(1, shorter((0..100).collect(), fails)).unwrap();
        assert_eq!(left, needed);
    }

    #[test]
    fn what_ends_is_played_once() {
        let played = std::sync::atomic::AtomicUsize::new(0);
        play(steps(1, 7), |steps| {
            assert_eq!(steps.len(), 7);
            played.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(played.into_inner(), 1);
    }

    #[test]
    #[should_panic(expected = "fails with 1 steps; again: true")]
    fn what_fails_is_told_shortened() {
        play((0..20).collect(), |steps: &[u32]| assert!(!steps.contains(&13)));
    }
}
