//! Faults that are injected into a leaf, to test how a pool copes with a bad device (`zinject -d`).
//!
//! ```text
//!   queue ──> Injector ──no fault: one atomic load──> device
//!                 └ a fault: as its type, frequency and effect say
//! ```
//!
//! A fault is for all of a device, or for ranges of it: the blocks of a file (`zinject -t data`).
//! As in OpenZFS a read or write with an injected error reaches the device, and only its result is
//! replaced. The choice of the I/Os that fail is random, and the same in each run.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, Revocable};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Buf, BufMut, Counter, Error, Kind, Result, Rng, monotonic};

use super::IoKind;

/// An I/O frequency of 100 %.
const ALWAYS_PPM: u32 = 1_000_000;

/// Longest wait before a delayed I/O checks whether it is still to be delayed.
const DELAY_STEP: Duration = Duration::from_millis(200);

/// Numbers injected faults.
static NUMBERS: Counter = Counter::new("injected faults");

/// The effect of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// The I/O is carried out, and reported as failed (`io`).
    Fail,
    /// Like `Fail`, and the device cannot be opened again (`nxio`).
    Vanish,
    /// The I/O is not carried out, and fails (`io-prefail`).
    FailBefore,
    /// The I/O is not carried out, and succeeds (`noop`).
    Ignore,
    /// A bit of the bytes read is flipped (`corrupt`).
    Corrupt,
    /// The end of a resilver leaves the dirty time log as it is (`dtl`).
    KeepDtl,
    /// The I/O takes at least this time, in one of `lanes` that serve one I/O each (`-D`).
    Delay {
        /// Least time of an I/O.
        latency: Duration,
        /// Number of lanes, at least 1.
        lanes: u16,
    },
}

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultSpec {
    /// Type of the affected I/Os; `None` for all.
    pub kind: Option<IoKind>,
    /// What happens to them.
    pub effect: FaultEffect,
    /// How many of them are affected, per million; 0 for all.
    pub frequency_ppm: u32,
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injection {
    /// Its number, unique in the process.
    pub id: u64,
    /// Guid of the leaf.
    pub leaf: u64,
    /// The fault.
    pub spec: FaultSpec,
    /// I/Os of its type.
    pub matched: u64,
    /// Affected I/Os.
    pub injected: u64,
}

/// The cause of an injected error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("injected fault {id}")]
pub struct InjectedLeafFault {
    /// Number of the fault.
    pub id: u64,
}

#[derive(Debug)]
struct Handler {
    id: u64,
    spec: FaultSpec,
    /// The affected bytes of the device, `None` for all of it.
    ranges: Option<Vec<Range<u64>>>,
    matched: u64,
    injected: u64,
    random: Rng,
    /// When each lane of a delay becomes free.
    lanes: Vec<Duration>,
}

impl Handler {
    /// Whether the fault affects this I/O of its type.
    fn draws(&mut self) -> bool {
        self.matched += 1;
        let frequency = self.spec.frequency_ppm;
        frequency == 0 || self.random.below(u64::from(ALWAYS_PPM)) < u64::from(frequency)
    }

    fn count(&mut self) {
        self.injected += 1;
    }

    /// Whether the fault is for I/Os of this type and place.
    fn is_of(&self, kind: IoKind, place: &Range<u64>) -> bool {
        self.spec.kind.is_none_or(|wanted| wanted == kind)
            && self.ranges.as_ref().is_none_or(|ranges| {
                ranges.iter().any(|range| range.start < place.end && place.start < range.end)
            })
    }

    /// Draws a bit of each affected part of a read; returns their numbers in its buffer.
    fn draw_bits(&mut self, place: &Range<u64>) -> Vec<u64> {
        let whole = [place.clone()];
        let mut bits = Vec::new();
        for range in self.ranges.as_deref().unwrap_or(&whole) {
            let (start, end) = (range.start.max(place.start), range.end.min(place.end));
            if start < end {
                let bit = self.random.below((end - start) * 8);
                bits.push((start - place.start) * 8 + bit);
            }
        }
        bits
    }
}

/// Effect of the injected faults on an I/O.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Verdict {
    /// The I/O ends no earlier than this.
    until: Option<Duration>,
    /// The fault, and its effect.
    fault: Option<(u64, FaultEffect)>,
    /// Bits of the buffer that change.
    bits: Vec<u64>,
}

/// The faults that are injected into a leaf.
#[derive(Debug)]
pub(crate) struct Injections {
    is_any: AtomicBool,
    handlers: Mutex<Vec<Handler>>,
}

impl Injections {
    pub(super) fn new() -> Arc<Self> {
        let handlers = Mutex::with_default(Rank::Injections);
        Arc::new(Self { is_any: AtomicBool::new(false), handlers })
    }

    /// Adds a fault of the leaf with the guid `leaf`. Returns its number.
    pub(super) fn add(&self, leaf: u64, spec: FaultSpec, ranges: Option<Vec<Range<u64>>>) -> u64 {
        let id = NUMBERS.next();
        self.add_as(id, leaf, spec, ranges);
        id
    }

    /// Like [`add`](Self::add), as a part of the fault `id`, which has others on other leaves.
    pub(super) fn add_as(
        &self,
        id: u64,
        leaf: u64,
        spec: FaultSpec,
        ranges: Option<Vec<Range<u64>>>,
    ) {
        let lanes = match spec.effect {
            FaultEffect::Delay { lanes, .. } => vec![Duration::ZERO; usize::from(lanes.max(1))],
            _ => Vec::new(),
        };
        let mut handlers = self.handlers.lock();
        let random = Rng::seeded(leaf ^ handlers.len() as u64);
        handlers.push(Handler { id, spec, ranges, matched: 0, injected: 0, random, lanes });
        self.is_any.store(true, Ordering::Release);
    }

    pub(super) fn cancel(&self, id: u64) -> bool {
        let mut handlers = self.handlers.lock();
        let before = handlers.len();
        handlers.retain(|handler| handler.id != id);
        self.is_any.store(!handlers.is_empty(), Ordering::Release);
        handlers.len() < before
    }

    /// Returns the faults of the leaf with the guid `leaf`.
    pub(super) fn list(&self, leaf: u64) -> Vec<Injection> {
        let handlers = self.handlers.lock();
        let one = |handler: &Handler| Injection {
            id: handler.id,
            leaf,
            spec: handler.spec,
            matched: handler.matched,
            injected: handler.injected,
        };
        handlers.iter().map(one).collect()
    }

    /// Whether the end of a scan leaves the dirty time log as it is.
    pub(crate) fn keeps_dtl(&self) -> bool {
        self.has_effect(FaultEffect::KeepDtl)
    }

    /// Whether the device cannot be opened again.
    pub(crate) fn fails_probes(&self) -> bool {
        self.has_effect(FaultEffect::Vanish)
    }

    fn has_effect(&self, effect: FaultEffect) -> bool {
        if !self.is_any() {
            return false;
        }
        let mut handlers = self.handlers.lock();
        let found = handlers.iter_mut().find(|handler| handler.spec.effect == effect);
        found.map(Handler::count).is_some()
    }

    fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Decides about an I/O. The first fault that affects it counts, and the shortest delay.
    fn judge(&self, kind: IoKind, place: &Range<u64>) -> Verdict {
        let mut verdict = Verdict::default();
        let mut delayed: Option<(Duration, usize, usize)> = None;
        let now = monotonic();
        let mut handlers = self.handlers.lock();
        for (index, handler) in handlers.iter_mut().enumerate() {
            if !handler.is_of(kind, place) {
                continue;
            }
            let effect = handler.spec.effect;
            match effect {
                FaultEffect::Delay { latency, .. } if kind != IoKind::Flush => {
                    if !handler.draws() {
                        continue;
                    }
                    let free = handler.lanes.iter().copied().enumerate().min_by_key(|lane| lane.1);
                    let Some((lane, free_at)) = free else { continue };
                    let end = free_at.max(now).saturating_add(latency);
                    if delayed.is_none_or(|(before, ..)| end < before) {
                        delayed = Some((end, index, lane));
                    }
                }
                FaultEffect::KeepDtl | FaultEffect::Delay { .. } => {}
                FaultEffect::Corrupt if kind != IoKind::Read => {}
                _ if verdict.fault.is_none() && handler.draws() => {
                    handler.count();
                    verdict.fault = Some((handler.id, effect));
                    if effect == FaultEffect::Corrupt {
                        verdict.bits = handler.draw_bits(place);
                    }
                }
                _ => {}
            }
        }
        if let Some((end, index, lane)) = delayed {
            let handler = &mut handlers[index];
            handler.lanes[lane] = end;
            handler.count();
            verdict.until = Some(end);
        }
        verdict
    }
}

/// A device with injected faults.
#[derive(Debug)]
pub(crate) struct Injector {
    device: Arc<Revocable>,
    faults: Arc<Injections>,
}

impl Injector {
    pub(crate) fn new(device: Arc<Revocable>, faults: Arc<Injections>) -> Arc<Self> {
        Arc::new(Self { device, faults })
    }

    /// Returns the result of `io` with the injected faults. `io` is carried out unless the fault
    /// prevents that; `ignored` is the result of an I/O that is ignored.
    async fn with_faults<T>(
        &self,
        (kind, offset, len): (IoKind, u64, u64),
        io: BoxFuture<'_, Result<T>>,
        ignored: impl FnOnce() -> T,
        corrupt: impl FnOnce(T, &[u64]) -> T,
    ) -> Result<T> {
        let verdict = self.faults.judge(kind, &(offset..offset.saturating_add(len)));
        let injected = |id| {
            let error = Error::new(Kind::Io, InjectedLeafFault { id });
            Err(error.on_device(&self.device.info().path, offset))
        };
        let result = match verdict.fault {
            Some((_, FaultEffect::Ignore)) => Ok(ignored()),
            Some((id, FaultEffect::FailBefore)) => injected(id),
            Some((id, FaultEffect::Fail | FaultEffect::Vanish)) => match io.await {
                // A pool that is being closed gets no errors of devices.
                Err(error) if error.kind() == Kind::Closed => Err(error),
                _ => injected(id),
            },
            Some((_, FaultEffect::Corrupt)) => io.await.map(|data| corrupt(data, &verdict.bits)),
            _ => io.await,
        };
        if let Some(end) = verdict.until {
            self.delay(end).await;
        }
        result
    }

    /// Waits until `end`, or until no fault is left or the pool is being closed.
    async fn delay(&self, end: Duration) {
        while self.faults.is_any() && !self.device.is_revoked() {
            let left = end.saturating_sub(monotonic());
            if left.is_zero() {
                return;
            }
            cenote_rt::sleep(left.min(DELAY_STEP)).await;
        }
    }
}

/// Flips bits.
fn flip(mut buf: BufMut, bits: &[u64]) -> BufMut {
    for bit in bits {
        if let Some(byte) = buf.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
    buf
}

/// Number of the next fault.
pub(super) fn next_number() -> u64 {
    NUMBERS.next()
}

impl Device for Injector {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        self.device.current_size()
    }

    fn is_at_its_path(&self) -> BoxFuture<'_, bool> {
        self.device.is_at_its_path()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        if !self.faults.is_any() {
            return self.device.read(offset, buf);
        }
        let len = buf.len();
        let io = self.device.read(offset, buf);
        let zeros = move || BufMut::zeroed(len);
        Box::pin(self.with_faults((IoKind::Read, offset, len as u64), io, zeros, flip))
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        if !self.faults.is_any() {
            return self.device.write(offset, parts);
        }
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let io = self.device.write(offset, parts);
        Box::pin(self.with_faults((IoKind::Write, offset, len), io, || (), |(), _| ()))
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        if !self.faults.is_any() {
            return self.device.flush();
        }
        let io = self.device.flush();
        Box::pin(self.with_faults((IoKind::Flush, 0, 0), io, || (), |(), _| ()))
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        if !self.faults.is_any() {
            return self.device.discard(offset, len);
        }
        let io = self.device.discard(offset, len);
        Box::pin(self.with_faults((IoKind::Discard, offset, len), io, || (), |(), _| ()))
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.device.settle()
    }
}

#[cfg(test)]
mod tests {
    use cenote_device::MemoryDevice;
    use cenote_rt::{block_on, simulate};

    use super::*;

    fn bench() -> (Arc<MemoryDevice>, Arc<Injections>, Arc<Injector>) {
        let memory = Arc::new(MemoryDevice::new("m", vec![7; 1 << 16]));
        let faults = Injections::new();
        let injector =
            Injector::new(Revocable::new(Arc::<MemoryDevice>::clone(&memory)), Arc::clone(&faults));
        (memory, faults, injector)
    }

    fn spec(kind: Option<IoKind>, effect: FaultEffect, frequency_ppm: u32) -> FaultSpec {
        FaultSpec { kind, effect, frequency_ppm }
    }

    #[test]
    fn effects_are_those_of_zinject() {
        block_on(1, async {
            let write = |device: Arc<Injector>, byte| async move {
                device.write(0, vec![Buf::from(vec![byte; 512])]).await
            };
            for (effect, fails, carried_out) in [
                (FaultEffect::Fail, true, true),
                (FaultEffect::Vanish, true, true),
                (FaultEffect::FailBefore, true, false),
                (FaultEffect::Ignore, false, false),
            ] {
                let (memory, faults, device) = bench();
                let id = faults.add(3, spec(Some(IoKind::Write), effect, 0), None);
                let result = write(Arc::clone(&device), 9).await;
                assert_eq!(result.is_err(), fails, "{effect:?}");
                if let Err(error) = result {
                    assert_eq!(error.cause(), Some(&InjectedLeafFault { id }));
                }
                memory.edit(|bytes| assert_eq!(bytes[0] == 9, carried_out, "{effect:?}"));
                // Other types are not affected.
                device.read(0, BufMut::zeroed(512)).await.expect("a read");
                device.flush().await.expect("a flush");
                let [found] = faults.list(3)[..] else { panic!("one fault") };
                assert_eq!((found.matched, found.injected), (1, 1));
                assert_eq!(faults.fails_probes(), effect == FaultEffect::Vanish);
                assert!(faults.cancel(id) && !faults.cancel(id));
                write(device, 9).await.expect("no fault is left");
            }
        })
        .expect("runtime");
    }

    #[test]
    fn faults_of_ranges_leave_the_rest_alone() {
        block_on(1, async {
            let (_, faults, device) = bench();
            let read = async |offset: u64| device.read(offset, BufMut::zeroed(4096)).await;
            let ranges = || Some(vec![1024..1536, 2048..2560, 16384..16896]);
            let id = faults.add(3, spec(Some(IoKind::Read), FaultEffect::Corrupt, 0), ranges());
            let data = read(0).await.expect("data");
            let wrong: Vec<_> = (0..4096).filter(|at| data[*at] != 7).map(|at| at / 512).collect();
            assert_eq!(wrong, [2, 4]);
            assert!(read(4096).await.expect("data").iter().all(|byte| *byte == 7));
            assert!(faults.cancel(id));
            faults.add(3, spec(Some(IoKind::Read), FaultEffect::Fail, 0), ranges());
            assert!(read(0).await.is_err() && read(16384).await.is_err());
            assert!(read(4096).await.is_ok());
        })
        .expect("it runs");
    }

    #[test]
    fn corruption_flips_one_bit_of_a_read() {
        block_on(1, async {
            let (_, faults, device) = bench();
            faults.add(3, spec(None, FaultEffect::Corrupt, 0), None);
            let read = device.read(0, BufMut::zeroed(512)).await.expect("there");
            let wrong: u32 = read.iter().map(|byte| (byte ^ 7).count_ones()).sum();
            assert_eq!(wrong, 1);
            device.write(0, vec![Buf::from(vec![7; 512])]).await.expect("not a read");
        })
        .expect("runtime");
    }

    #[test]
    fn a_frequency_is_kept_about() {
        block_on(1, async {
            let (_, faults, device) = bench();
            faults.add(3, spec(None, FaultEffect::Fail, 250_000), None);
            let mut failed = 0;
            for _ in 0..4000 {
                failed += u32::from(device.flush().await.is_err());
            }
            assert!((800..1200).contains(&failed), "{failed}");
        })
        .expect("runtime");
    }

    /// Lanes serve one I/O each; delays of several faults add lanes.
    #[test]
    fn delays_have_lanes() {
        for (lanes, want_ms) in [(&[1_u16][..], 30), (&[3], 10), (&[1, 2], 10), (&[2], 20)] {
            let done = simulate(1, async move {
                let (_, faults, device) = bench();
                for lanes in lanes {
                    let latency = Duration::from_millis(10);
                    faults.add(
                        3,
                        spec(None, FaultEffect::Delay { latency, lanes: *lanes }, 0),
                        None,
                    );
                }
                let start = monotonic();
                let reads = (0..3).map(|_| device.read(0, BufMut::zeroed(512)));
                for read in futures_util::future::join_all(reads).await {
                    read.expect("there");
                }
                let took = monotonic().saturating_sub(start);
                let want = Duration::from_millis(want_ms);
                assert!(took >= want && took < want + Duration::from_millis(5), "{took:?}");
            });
            done.expect("simulated");
        }
    }
}
