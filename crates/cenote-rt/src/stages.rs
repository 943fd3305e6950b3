//! Named stages of work, at which a test can stop a process.
//!
//! Code that must survive the end of its process at any point names its points:
//! `stages::reach("cache-file-renamed")`. A program that is tested that way registers an observer,
//! which records the stages and stops or ends the process at one of them. In a build without debug
//! assertions [`reach`] is empty.

use std::sync::OnceLock;

static OBSERVER: OnceLock<fn(&str)> = OnceLock::new();

/// Registers the function that is called at each stage, on the thread that reaches it. Only the
/// first one counts.
pub fn observe(observer: fn(&str)) {
    let _ = OBSERVER.set(observer);
}

/// Tells the observer, if there is one, that a stage is reached.
pub fn reach(stage: &str) {
    if cfg!(debug_assertions)
        && let Some(observer) = OBSERVER.get()
    {
        observer(stage);
    }
}
