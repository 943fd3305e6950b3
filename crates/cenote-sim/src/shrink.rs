//! Makes a failing plan smaller: leaves out lives, tasks, faults, steps and settings, as long as
//! the plan still fails in the same way.

use cenote_rt::seeded::Bug;

use crate::history;
use crate::plan::{Life, Plan, TaskPlan};

/// Runs at most.
const RUNS_MAX: usize = 600;
/// Letters at the begin of failures of the same kind.
const SAME_LETTERS: usize = 30;

struct Shrinker {
    plan: Plan,
    failure: String,
    bug: Option<Bug>,
    runs: usize,
}

/// Returns a smaller plan that fails, and its failure.
pub(crate) fn shrink(plan: &Plan, bug: Option<Bug>, failure: &str) -> (Plan, String) {
    let mut shrinker = Shrinker { plan: plan.clone(), failure: failure.to_owned(), bug, runs: 0 };
    loop {
        let before = size(&shrinker.plan);
        shrinker.lives();
        shrinker.tasks();
        shrinker.faults();
        shrinker.steps();
        shrinker.settings();
        if size(&shrinker.plan) == before || shrinker.runs >= RUNS_MAX {
            return (shrinker.plan, shrinker.failure);
        }
    }
}

/// Number of parts of a plan.
fn size(plan: &Plan) -> usize {
    let of_task = |task: &TaskPlan| 1 + task.steps.len();
    let of_life = |life: &Life| {
        1 + life.faults.len()
            + life.clock.len()
            + life.missing.len()
            + life.tasks.iter().map(of_task).sum::<usize>()
    };
    plan.tunables.len() + plan.lives.iter().map(of_life).sum::<usize>()
}

/// Returns the begin of a failure, without its numbers.
fn letters(failure: &str) -> impl Iterator<Item = char> + '_ {
    failure.chars().filter(|letter| letter.is_alphabetic()).take(SAME_LETTERS)
}

impl Shrinker {
    /// Takes a plan if it fails in the same way.
    fn try_plan(&mut self, plan: Plan) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let Some(failure) = history::run(&plan, self.bug).failure else { return false };
        if !letters(&failure).eq(letters(&self.failure)) {
            return false;
        }
        (self.plan, self.failure) = (plan, failure);
        true
    }

    /// Leaves out parts of a list, first halves, then ever smaller parts.
    fn reduce<T: Clone>(&mut self, list: impl Fn(&mut Plan) -> Option<&mut Vec<T>>) {
        let count = |plan: &Plan| list(&mut plan.clone()).map_or(0, |list| list.len());
        let mut part = count(&self.plan).div_ceil(2);
        while part > 0 {
            let mut at = 0;
            while at < count(&self.plan) {
                let mut plan = self.plan.clone();
                if let Some(list) = list(&mut plan) {
                    list.drain(at..(at + part).min(list.len()));
                }
                if !self.try_plan(plan) {
                    at += part;
                }
            }
            part /= 2;
        }
    }

    fn lives(&mut self) {
        self.reduce(|plan| Some(&mut plan.lives));
    }

    fn tasks(&mut self) {
        for number in 0..self.plan.lives.len() {
            self.reduce(|plan| plan.lives.get_mut(number).map(|life| &mut life.tasks));
        }
    }

    fn faults(&mut self) {
        for number in 0..self.plan.lives.len() {
            self.reduce(|plan| plan.lives.get_mut(number).map(|life| &mut life.faults));
            self.reduce(|plan| plan.lives.get_mut(number).map(|life| &mut life.clock));
            self.reduce(|plan| plan.lives.get_mut(number).map(|life| &mut life.missing));
        }
    }

    fn steps(&mut self) {
        for number in 0..self.plan.lives.len() {
            for task in 0..self.plan.lives[number].tasks.len() {
                self.reduce(|plan| {
                    let life = plan.lives.get_mut(number)?;
                    life.tasks.get_mut(task).map(|task| &mut task.steps)
                });
            }
        }
    }

    fn settings(&mut self) {
        self.reduce(|plan| Some(&mut plan.tunables));
        for number in 0..self.plan.file_systems.len() {
            self.reduce(|plan| plan.file_systems.get_mut(number).map(|of| &mut of.properties));
        }
        let mut plan = self.plan.clone();
        for life in &mut plan.lives {
            (life.gap, life.jump) = (0, 0);
            life.tasks.iter_mut().flat_map(|task| &mut task.steps).for_each(|step| step.pause = 0);
        }
        self.try_plan(plan);
        let mut plan = Plan { has_costs: false, ..self.plan.clone() };
        plan.layout.models.clear();
        self.try_plan(plan);
        let mut plan = self.plan.clone();
        plan.layout.hot_spares = 0;
        self.try_plan(plan);
        let plan = Plan { interleave: None, processors: 1, ..self.plan.clone() };
        self.try_plan(plan);
    }
}
