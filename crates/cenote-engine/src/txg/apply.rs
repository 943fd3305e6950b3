//! How a change of a head is made: the options of [`Engine::apply`].
//!
//! ```text
//!   apply(head, options, change)
//!                  |         `── returns a value; a logged change also the bytes of its records
//!                  |── charge: room that the change needs, before it is made
//!                  `── log: Unlogged | Logged | Replayed
//! ```
//!
//! A change that is logged can be made durable before its txg is: its closure adds its records to
//! the log as its last step ([`Log::append`]). A change that is not logged is durable with its txg.
//! A replayed change is a record of the log itself, and the log notes that it is done.
//!
//! [`Engine::apply`]: crate::Engine::apply
//! [`Log::append`]: crate::zil::Log::append

use cenote_dmu::Tx;
use cenote_rt::{Error, Kind, Result};

use crate::zil::{LogBytes, Outcome};
use crate::{Charge, EngineError, Head};

/// Options of [`Engine::apply`](crate::Engine::apply).
#[derive(Debug, Clone, Copy)]
pub struct ApplyOptions<L = Unlogged> {
    pub(super) charge: Charge,
    pub(super) log: L,
}

impl ApplyOptions<Unlogged> {
    /// A small change whose cost is not known before it is made. It is not logged.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a change without options is rare")]
    pub const fn new() -> Self {
        Self::charged(Charge::UNKNOWN)
    }

    /// A change that needs the room that `charge` says. It is not logged.
    #[must_use]
    pub const fn charged(charge: Charge) -> Self {
        Self { charge, log: Unlogged }
    }

    /// The change of a log record with a sequence number. A full pool is replayed too: the log took
    /// the space before.
    pub(crate) const fn replayed(seq: u64) -> ApplyOptions<Replayed> {
        ApplyOptions { charge: Charge::free(0), log: Replayed { seq } }
    }

    /// Has the closure return the bytes of the records that it added to the log, as every change
    /// that a user makes does.
    #[must_use]
    pub const fn logged(self) -> ApplyOptions<Logged> {
        ApplyOptions { charge: self.charge, log: Logged }
    }
}

/// A change without log records: it is durable with its txg.
#[derive(Debug, Clone, Copy)]
pub struct Unlogged;

/// A change that adds its records to the head's log.
#[derive(Debug, Clone, Copy)]
pub struct Logged;

/// A change that is replayed from the head's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replayed {
    seq: u64,
}

/// What a change has to do with its head's log; `R` is what its closure returns.
pub trait LogMode<R>: sealed::Sealed {
    /// The value that [`Engine::apply`](crate::Engine::apply) returns.
    type Value;

    /// Refuses the change if the state of the log does not allow it.
    #[doc(hidden)]
    fn check(&self, head: &Head) -> Result<()>;

    /// Ends a change that has succeeded. Nothing fails from here on.
    #[doc(hidden)]
    fn finish(&self, head: &Head, tx: &Tx<'_>, done: R) -> (Self::Value, LogBytes);
}

impl<T> LogMode<T> for Unlogged {
    type Value = T;

    fn check(&self, _: &Head) -> Result<()> {
        Ok(())
    }

    fn finish(&self, _: &Head, _: &Tx<'_>, done: T) -> (T, LogBytes) {
        (done, LogBytes::default())
    }
}

impl<T> LogMode<(T, LogBytes)> for Logged {
    type Value = T;

    /// Refuses a change before the log of an earlier opening is replayed: the replay would undo it.
    fn check(&self, head: &Head) -> Result<()> {
        // Checks L11.
        if head.log().awaits_replay() {
            return Err(Error::new(Kind::Busy, EngineError::Unreplayed(head.object())));
        }
        Ok(())
    }

    fn finish(&self, _: &Head, _: &Tx<'_>, done: (T, LogBytes)) -> (T, LogBytes) {
        done
    }
}

impl LogMode<Outcome> for Replayed {
    type Value = Outcome;

    fn check(&self, _: &Head) -> Result<()> {
        Ok(())
    }

    fn finish(&self, head: &Head, tx: &Tx<'_>, outcome: Outcome) -> (Outcome, LogBytes) {
        // With the change or not at all.
        if outcome == Outcome::Applied {
            head.log().note_replayed(tx.txg(), self.seq);
        }
        (outcome, LogBytes::default())
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Unlogged {}
    impl Sealed for super::Logged {}
    impl Sealed for super::Replayed {}
}
