//! The clock of a modelled disk: the time of the engine, which can be slowed and stopped.
//!
//! The model's time advances by one for every `factor` of the engine's, from an anchor on. An
//! anchor in the future stops the model until then. A disk can be used in one simulation after
//! another, each of which begins at 0: when the engine's time goes back, the anchor moves along.

/// A mapping between the engine's time and the model's, in nanoseconds.
#[derive(Debug)]
pub(super) struct Clock {
    anchor_ns: u64,
    model_ns: u64,
    factor: u64,
    seen_ns: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { anchor_ns: 0, model_ns: 0, factor: 1, seen_ns: 0 }
    }

    /// Notes the engine's time, and returns the model's.
    pub(super) fn at(&mut self, now_ns: u64) -> u64 {
        if now_ns < self.seen_ns {
            self.model_ns = self.model(self.seen_ns);
            let left_ns = self.anchor_ns.saturating_sub(self.seen_ns);
            self.anchor_ns = now_ns.saturating_add(left_ns);
            if left_ns > u64::MAX / 2 {
                self.anchor_ns = u64::MAX;
            }
        }
        self.seen_ns = now_ns;
        self.model(now_ns)
    }

    fn model(&self, now_ns: u64) -> u64 {
        self.model_ns + now_ns.saturating_sub(self.anchor_ns) / self.factor
    }

    /// The engine's time when the model's is `model_ns`; `None` while the clock is stopped.
    pub(super) fn engine(&self, model_ns: u64) -> Option<u64> {
        let ahead_ns = model_ns.saturating_sub(self.model_ns).saturating_mul(self.factor);
        let at_ns = self.anchor_ns.saturating_add(ahead_ns);
        (at_ns < u64::MAX).then_some(at_ns)
    }

    /// Sets the anchor to the time that was noted last.
    fn anchor(&mut self) {
        self.model_ns = self.model(self.seen_ns);
        self.anchor_ns = self.anchor_ns.max(self.seen_ns);
    }

    /// Slows the model down by `factor`, at least 1.
    pub(super) fn slow(&mut self, factor: u64) {
        self.anchor();
        self.factor = factor.max(1);
    }

    /// Stops the model for `duration_ns`; for ever with `None`.
    pub(super) fn stop(&mut self, duration_ns: Option<u64>) {
        self.anchor();
        let end_ns = duration_ns.map_or(u64::MAX, |length| self.seen_ns.saturating_add(length));
        self.anchor_ns = self.anchor_ns.max(end_ns);
    }

    /// Lets a stopped model go on.
    pub(super) fn resume(&mut self) {
        self.model_ns = self.model(self.seen_ns);
        self.anchor_ns = self.seen_ns;
    }
}
