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
mod history;
mod large;
mod logs;
mod longnames;
mod model;
mod owners;
mod reading;
mod replay;
mod rights;
mod speed;
mod spelling;
mod unnamed;
