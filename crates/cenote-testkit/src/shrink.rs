//! Making a failing history shorter.

/// Runs of a history at most before it is short enough.
const RUNS_MAX: usize = 400;

/// Leaves out of `steps` what is not needed for a failure: first halves, then ever smaller parts.
/// Any part of a history must be a history.
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
}
