//! Devices that fail while a daemon has file systems mounted and volumes exported under load.
//!
//! Each test creates a pool on the leaves of a fault layer ([`cenote_testkit::faultfs`]), starts
//! writers on mounted file systems and a volume, makes leaves fail, heals them or cuts the power,
//! and compares the data with what was acknowledged ([`model`]): every byte that an `fsync` or a
//! flush promised, no byte that was never written, no checksum errors on healthy leaves, commands
//! that end within seconds, and finally a pool that `zdb -bcc` finds clean.
//!
//! A few seconds of it run always; `CENOTE_TEST_ALL` runs every scenario on every layout, with more
//! seeds. `CENOTE_SEED` repeats one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "faults happen in real time")]

mod closings;
mod judge;
mod kills;
mod layout;
mod leaves;
mod load;
mod logs;
mod model;
mod outages;
mod power;
mod site;
mod sizes;
mod volume;

/// The process of the fault layer of each test; tests nothing itself.
#[test]
fn fault_layer() {
    cenote_testkit::faultfs::serve_if_started();
}
