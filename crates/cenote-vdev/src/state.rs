//! States of vdevs, and how a parent's state follows from its children's.
//!
//! A leaf's state comes from its config (offline, faulted, removed, degraded) and from whether a
//! device was found for it. An interior vdev counts children that are dead (below `Degraded`) and
//! children that are less than healthy, and is dead itself when more are dead than its redundancy
//! tolerates (spec 06 §2.3).

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};

/// State of a vdev, with OpenZFS's numbers: larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Not opened.
    Closed = 1,
    /// Taken offline by the administrator.
    Offline = 2,
    /// Its device was pulled out.
    Removed = 3,
    /// Cannot be used (shown as `UNAVAIL`).
    CantOpen = 4,
    /// Taken out of service after too many errors, or by the administrator.
    Faulted = 5,
    /// Usable, with less redundancy or with errors.
    Degraded = 6,
    /// Fully working (shown as `ONLINE`).
    Healthy = 7,
}

impl VdevState {
    const ALL: [Self; 7] = [
        Self::Healthy,
        Self::Degraded,
        Self::Faulted,
        Self::CantOpen,
        Self::Removed,
        Self::Offline,
        Self::Closed,
    ];

    /// Whether data can be read from it.
    pub fn is_readable(self) -> bool {
        self >= Self::Degraded
    }
}

impl fmt::Display for VdevState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closed | Self::Offline => "OFFLINE",
            Self::Removed => "REMOVED",
            Self::CantOpen => "UNAVAIL",
            Self::Faulted => "FAULTED",
            Self::Degraded => "DEGRADED",
            Self::Healthy => "ONLINE",
        })
    }
}

/// Why a vdev is in its state, with OpenZFS's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VdevAux {
    /// No reason.
    None = 0,
    /// No device was found.
    OpenFailed = 1,
    /// Its label or data is bad.
    CorruptData = 2,
    /// Too few children.
    NoReplicas = 3,
    /// The guids do not add up to the uberblock's sum.
    BadGuidSum = 4,
    /// The device is smaller than required.
    TooSmall = 5,
    /// The label is missing or belongs to something else.
    BadLabel = 6,
    /// An active hot spare stands in for it.
    Spared = 10,
    /// Too many errors.
    ErrExceeded = 11,
    /// A log device that cannot be read.
    BadLog = 13,
    /// Taken out of service by the administrator.
    External = 14,
    /// The administrator took all children offline.
    ChildrenOffline = 19,
}

impl VdevAux {
    const ALL: [Self; 12] = [
        Self::None,
        Self::OpenFailed,
        Self::CorruptData,
        Self::NoReplicas,
        Self::BadGuidSum,
        Self::TooSmall,
        Self::BadLabel,
        Self::Spared,
        Self::ErrExceeded,
        Self::BadLog,
        Self::External,
        Self::ChildrenOffline,
    ];

    /// The word for it in a config (`aux_state`), if there is one.
    pub const fn in_config(self) -> Option<&'static str> {
        match self {
            Self::ErrExceeded => Some("err_exceeded"),
            Self::External => Some("external"),
            _ => None,
        }
    }

    /// Parses the word in a config; `None` for unknown words.
    pub fn of_config(text: Option<&str>) -> Self {
        let found = Self::ALL.into_iter().find(|aux| text.is_some() && aux.in_config() == text);
        found.unwrap_or(Self::None)
    }
}

/// State and reason of a vdev, changed together while the pool is in use.
#[derive(Debug)]
pub(crate) struct Status(AtomicU16);

impl Status {
    pub(crate) const fn new(state: VdevState, aux: VdevAux) -> Self {
        Self(AtomicU16::new((state as u16) << 8 | aux as u16))
    }

    pub(crate) fn set(&self, (state, aux): (VdevState, VdevAux)) {
        self.0.store((state as u16) << 8 | aux as u16, Ordering::Release);
    }

    pub(crate) fn state(&self) -> VdevState {
        let number = self.0.load(Ordering::Acquire) >> 8;
        VdevState::ALL
            .into_iter()
            .find(|state| *state as u16 == number)
            .unwrap_or(VdevState::Closed)
    }

    pub(crate) fn aux(&self) -> VdevAux {
        let number = self.0.load(Ordering::Acquire) & 0xff;
        VdevAux::ALL.into_iter().find(|aux| *aux as u16 == number).unwrap_or(VdevAux::None)
    }
}

/// State of a child as its parent needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChildState {
    pub(crate) state: VdevState,
    pub(crate) is_log: bool,
}

/// State of an interior vdev that tolerates `tolerated` dead children.
pub(crate) fn of_interior(children: &[ChildState], tolerated: usize) -> (VdevState, VdevAux) {
    let dead = children.iter().filter(|child| !child.state.is_readable()).count();
    if dead > tolerated || children.is_empty() {
        let is_offline = |child: &ChildState| child.state == VdevState::Offline;
        let aux = if !children.is_empty() && children.iter().all(is_offline) {
            VdevAux::ChildrenOffline
        } else {
            VdevAux::NoReplicas
        };
        return (VdevState::CantOpen, aux);
    }
    let is_healthy = children.iter().all(|child| child.state == VdevState::Healthy);
    (if is_healthy { VdevState::Healthy } else { VdevState::Degraded }, VdevAux::None)
}

/// State of the root: dead if any child but a log is dead; `missing_allowed` dead ones are
/// tolerated.
pub(crate) fn of_root(tops: &[ChildState], missing_allowed: usize) -> (VdevState, VdevAux) {
    let dead = |top: &&ChildState| !top.state.is_readable();
    if tops.iter().filter(dead).filter(|top| !top.is_log).count() > missing_allowed {
        return (VdevState::CantOpen, VdevAux::NoReplicas);
    }
    let aux = if tops.iter().filter(dead).any(|top| top.is_log) {
        VdevAux::BadLog
    } else {
        VdevAux::None
    };
    let is_healthy = tops.iter().all(|top| top.state == VdevState::Healthy);
    (if is_healthy { VdevState::Healthy } else { VdevState::Degraded }, aux)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(states: &[VdevState]) -> Vec<ChildState> {
        states.iter().map(|state| ChildState { state: *state, is_log: false }).collect()
    }

    #[test]
    fn parents_follow_children() {
        use VdevState::{CantOpen, Degraded, Faulted, Healthy, Offline};
        for (states, tolerated, want) in [
            (&[Healthy, Healthy][..], 1, (Healthy, VdevAux::None)),
            (&[Healthy, Degraded], 0, (Degraded, VdevAux::None)),
            (&[Healthy, CantOpen], 1, (Degraded, VdevAux::None)),
            (&[Faulted, CantOpen], 1, (CantOpen, VdevAux::NoReplicas)),
            (&[Offline, Offline], 1, (CantOpen, VdevAux::ChildrenOffline)),
            (&[], 1, (CantOpen, VdevAux::NoReplicas)),
        ] {
            assert_eq!(of_interior(&children(states), tolerated), want, "{states:?}");
        }
    }

    #[test]
    fn a_status_returns_what_was_set() {
        for state in VdevState::ALL {
            for aux in VdevAux::ALL {
                let status = Status::new(VdevState::Closed, VdevAux::None);
                status.set((state, aux));
                assert_eq!((status.state(), status.aux()), (state, aux));
            }
        }
        for aux in VdevAux::ALL.into_iter().filter(|aux| aux.in_config().is_some()) {
            assert_eq!(VdevAux::of_config(aux.in_config()), aux);
        }
        assert_eq!(VdevAux::of_config(None), VdevAux::None);
        assert_eq!(VdevAux::of_config(Some("other")), VdevAux::None);
    }

    #[test]
    fn the_root_tolerates_dead_logs_only() {
        let mut tops = children(&[VdevState::Healthy, VdevState::CantOpen]);
        assert_eq!(of_root(&tops, 0), (VdevState::CantOpen, VdevAux::NoReplicas));
        assert_eq!(of_root(&tops, 1), (VdevState::Degraded, VdevAux::None));
        tops[1].is_log = true;
        assert_eq!(of_root(&tops, 0), (VdevState::Degraded, VdevAux::BadLog));
    }
}
