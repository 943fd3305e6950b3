//! Actions of a test at a named stage of the engine's work.

use std::cell::RefCell;

use cenote_rt::stages;

type Action = Box<dyn FnOnce()>;

thread_local! {
    /// The next stage with an action. A simulation runs on the thread of its test.
    static NEXT: RefCell<Option<(&'static str, Action)>> = const { RefCell::new(None) };
}

/// Runs `action` when this thread reaches `stage` for the first time from now on. It replaces an
/// action that has not run.
pub(crate) fn at_stage(stage: &'static str, action: impl FnOnce() + 'static) {
    stages::observe(reached);
    NEXT.with_borrow_mut(|next| *next = Some((stage, Box::new(action))));
}

/// Whether the action has run.
pub(crate) fn is_done() -> bool {
    NEXT.with_borrow(Option::is_none)
}

fn reached(stage: &str) {
    let action = NEXT.with_borrow_mut(|next| next.take_if(|(wanted, _)| *wanted == stage));
    if let Some((_, action)) = action {
        action();
    }
}
