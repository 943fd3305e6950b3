//! Policies: tunables by name and date, which experiments compare.
//!
//! A policy is a list of tunables that differ from the defaults of this engine; `cenote lab
//! policies` prints them. Historic policies set only tunables that the experiments depend on.
//!
//! Sources: spec 09 §4; spec 05 §12 for the allocator of 2013, spec 06 §12 for optional writes.

use cenote_engine::ThrottleModel;
use cenote_rt::tunables::{self, Tunable};

/// A set of tunables.
#[derive(Debug)]
pub struct Policy {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Tunables that differ from the defaults.
    pub tunables: &'static [(&'static Tunable, u64)],
}

impl Policy {
    /// Returns its tunables, and then those of an experiment.
    #[must_use]
    pub fn with(&self, others: &[(&'static Tunable, u64)]) -> Vec<(&'static Tunable, u64)> {
        self.tunables.iter().chain(others).copied().collect()
    }
}

const KIB_128: u64 = 128 << 10;

/// All policies, oldest first.
pub static POLICIES: [Policy; 10] = [
    Policy {
        name: "historic-2013",
        about: "ZFS of 2013: allocator by space, 16K indirect blocks, scans with delays, optional \
                writes within the aggregation limit of 128K",
        tunables: &[
            (&tunables::ALLOCATOR, 1),
            (&tunables::NUM_ALLOCATORS, 1),
            (&tunables::DEFAULT_IBS, 14),
            (&tunables::SCAN_THROTTLE, ThrottleModel::Delays as u64),
            (&tunables::OPTIONAL_IS_LIMITED, 1),
            (&tunables::AGGREGATION_LIMIT, KIB_128),
        ],
    },
    Policy {
        name: "before-8005",
        about: "optional writes within the aggregation limit of 128K, as before illumos #8005",
        tunables: &[(&tunables::OPTIONAL_IS_LIMITED, 1), (&tunables::AGGREGATION_LIMIT, KIB_128)],
    },
    Policy {
        name: "limit-256k",
        about: "before-8005 with an aggregation limit of 256K, the remedy without a new release",
        tunables: &[
            (&tunables::OPTIONAL_IS_LIMITED, 1),
            (&tunables::AGGREGATION_LIMIT, 2 * KIB_128),
            (&tunables::AGGREGATION_LIMIT_NON_ROTATING, 2 * KIB_128),
        ],
    },
    Policy {
        name: "after-8005",
        about: "optional writes beyond the aggregation limit of 128K: only the fix differs from \
                before-8005",
        tunables: &[(&tunables::AGGREGATION_LIMIT, KIB_128)],
    },
    Policy {
        name: "indirect-16k",
        about: "indirect blocks of 16K, as before illumos #7104",
        tunables: &[(&tunables::DEFAULT_IBS, 14)],
    },
    Policy {
        name: "indirect-32k",
        about: "indirect blocks of 32K",
        tunables: &[(&tunables::DEFAULT_IBS, 15)],
    },
    Policy {
        name: "indirect-64k",
        about: "indirect blocks of 64K",
        tunables: &[(&tunables::DEFAULT_IBS, 16)],
    },
    Policy { name: "openzfs-2.3", about: "OpenZFS 2.3", tunables: &[] },
    Policy {
        name: "cenote-separate",
        about: "metadata in metaslabs of their own, and the metaslabs with the longest free runs first",
        tunables: &[(&tunables::ALLOCATOR, 2)],
    },
    Policy { name: "cenote", about: "the defaults of this engine", tunables: &[] },
];

/// Returns a policy by its name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Policy> {
    POLICIES.iter().find(|policy| policy.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_hold_values_in_range() {
        for policy in &POLICIES {
            for (tunable, value) in policy.tunables {
                tunable.parse(&value.to_string()).unwrap();
                assert_ne!(tunable.default, *value, "{}: {}", policy.name, tunable.name);
            }
        }
        assert!(find("cenote").is_some() && find("nosuch").is_none());
    }
}
