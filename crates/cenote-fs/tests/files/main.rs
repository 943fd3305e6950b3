//! File systems that are written: compared with a model and with OpenZFS, and after crashes.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod accounts;
mod ahead;
mod attributes;
mod basics;
mod control;
mod copied;
mod copies;
mod cuts;
mod diff;
mod extras;
mod fixture;
#[path = "../../../cenote-engine/tests/zil/frozen.rs"]
mod frozen;
mod history;
#[path = "../../../cenote-engine/tests/zil/images.rs"]
mod images;
mod large;
mod logs;
mod longnames;
mod model;
mod owners;
#[path = "../volumes/pools.rs"]
mod pools;
mod reading;
#[path = "../volumes/records.rs"]
mod records;
mod replay;
mod rights;
mod speed;
mod spelling;
mod unnamed;
