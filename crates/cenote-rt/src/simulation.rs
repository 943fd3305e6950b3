//! Simulation: time, tasks and randomness that a seed determines.
//!
//! ```text
//!   simulate(seed, future)    one thread, tasks in a fixed order
//!                             wall_clock, monotonic    a clock that moves when read or slept on
//!                             secret_bytes             drawn from the seed
//!                             blocking, cpu            inline
//! ```
//!
//! The layers above are unaware of it: they get time, tasks and randomness from the simulation of
//! their thread. On devices in memory, two runs with one seed write the same bytes in the same
//! order.

use std::cell::RefCell;
use std::time::Duration;

use crate::{Error, Kind, Result, Rng};

/// Start of every simulation, seconds since 1970.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);
/// Time that reading the clock takes.
const GLANCE: Duration = Duration::from_nanos(1);

struct World {
    elapsed: Duration,
    rng: Rng,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Ends the simulation, also if a test fails in it.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        WORLD.with(|world| *world.borrow_mut() = None);
    }
}

/// Runs `future` to its end in a simulation.
pub fn simulate<T>(seed: u64, future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Io, error))?;
    let world = World { elapsed: Duration::ZERO, rng: Rng::seeded(seed) };
    WORLD.with(|here| *here.borrow_mut() = Some(world));
    let _leave = Leave;
    Ok(runtime.block_on(crate::lock::tracked(future)))
}

fn with<T>(look: impl FnOnce(&mut World) -> T) -> Option<T> {
    WORLD.with(|world| world.borrow_mut().as_mut().map(look))
}

/// Whether this thread is in a simulation.
pub(crate) fn is_here() -> bool {
    with(|_| ()).is_some()
}

/// Returns the time since the simulation began.
pub(crate) fn elapsed() -> Option<Duration> {
    with(|world| {
        world.elapsed += GLANCE;
        world.elapsed
    })
}

/// Returns the time of day.
pub(crate) fn wall_clock() -> Option<Duration> {
    elapsed().map(|elapsed| EPOCH + elapsed)
}

/// Advances the time. Returns false outside of a simulation.
pub(crate) fn pass(duration: Duration) -> bool {
    with(|world| world.elapsed += duration).is_some()
}

/// Fills `bytes` from the seed. Returns false outside of a simulation.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    with(|world| world.rng.fill(bytes)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) -> (Vec<u8>, Duration, Duration) {
        let world = simulate(seed, async {
            let mut secret = vec![0; 20];
            crate::secret_bytes(&mut secret).unwrap();
            let before = crate::wall_clock();
            crate::sleep(Duration::from_secs(5)).await;
            assert_eq!(crate::blocking(|| 7).await.unwrap(), 7);
            (secret, before, crate::monotonic())
        });
        world.unwrap()
    }

    #[test]
    fn simulation_is_determined_by_its_seed() {
        assert_eq!(run(1), run(1));
        assert_ne!(run(1).0, run(2).0);
        assert!(run(1).2 >= Duration::from_secs(5));
        assert!(!is_here(), "it is left behind");
    }
}
