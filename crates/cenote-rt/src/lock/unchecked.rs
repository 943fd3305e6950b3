//! Empty forms of the checks in `checked`, for builds without debug assertions.

use std::future::Future;

use super::Rank;

/// Stands for the rank of a lock, and has no size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place;

/// Stands for a lock that a thread holds, and has no size.
#[derive(Debug)]
pub(super) struct Entered;

/// Stands for a lock that a task holds, and has no size.
#[derive(Debug)]
pub(super) struct EnteredTask;

#[expect(clippy::unused_self, reason = "the checked form uses it")]
impl Place {
    pub(super) const fn new(_rank: Rank) -> Self {
        Self
    }

    #[inline]
    pub(super) fn check(self) {}

    #[inline]
    pub(super) fn check_wait(self) {}

    #[inline]
    pub(super) fn enter(self) -> Entered {
        Entered
    }

    #[inline]
    pub(super) fn enter_task(self) -> EnteredTask {
        EnteredTask
    }
}

/// Returns `future`.
#[inline]
pub(crate) fn tracked<F: Future>(future: F) -> F {
    future
}

/// Returns `future`.
#[inline]
pub fn branch<F: Future>(future: F) -> impl Future<Output = F::Output> {
    future
}

/// Does nothing.
#[inline]
pub(crate) fn check_block_on() {}
