//! A simulated machine, and the lives of processes on it.
//!
//! A history is one simulation. Each life is a process of it ([`cenote_rt::Process`]): when its
//! future has returned, the process is killed, and its tasks are dropped where they are. Disks and
//! models belong to the machine, and live on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use cenote_rt::seeded::Bug;
use cenote_rt::{Costs, Process, World, tunables};

use crate::disks::Machine;
use crate::plan::Plan;

/// Processor time of a single poll that counts as an endless loop.
const POLL_TIME_MAX: Duration = Duration::from_mins(2);

/// Runs `machine` as the machine of a plan, in an engine with a mistake or without. Returns its
/// result, or why the simulation ended otherwise: a panic, or tasks that wait for each other.
pub(crate) fn run<T>(
    plan: &Plan,
    bug: Option<Bug>,
    machine: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let values = plan.tunables.iter().filter_map(|(name, value)| {
        let tunable = tunables::find(name)?;
        Some((tunable, *value))
    });
    let world = World {
        processors: plan.processors,
        costs: plan.has_costs.then(Costs::frozen),
        interleave: plan.interleave,
        tunables: values.collect(),
        bug,
        poll_time_max: Some(POLL_TIME_MAX),
        ..World::new(plan.seed)
    };
    match catch_unwind(AssertUnwindSafe(|| cenote_rt::simulate(world, machine))) {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(error.to_string()),
        Err(cause) => Err(panic_message(&*cause)),
    }
}

/// Runs a life as a process of a machine.
pub(crate) async fn live(
    name: String,
    machine: &Machine,
    life: impl Future<Output = Result<(), String>> + Send + 'static,
) -> Result<(), String> {
    let process = Process::new(name);
    machine.run(&process);
    let ended = process.spawn(life).await;
    process.kill();
    ended.map_err(|error| error.to_string())?
}

fn panic_message(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().cloned();
    let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("panic: {}", text.unwrap_or_else(|| "of unknown cause".to_owned()))
}
