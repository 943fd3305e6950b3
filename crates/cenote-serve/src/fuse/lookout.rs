//! Which thread takes the next request, and how it waits for it.
//!
//! ```text
//!   at the device:  one thread ── request ──> its work ──> looks out for the next ──> ...
//!   away from it:   the others, until there is more than one request, or one that takes long
//! ```
//!
//! A thread that sleeps until a request comes has to be woken, which on a virtual machine takes
//! longer than most requests. So a thread that has answered one looks out for the next a while
//! before it sleeps, as long as they follow one another closely, and looking out is not in vain
//! time after time. That is of use only if the others are away: the kernel wakes a thread that
//! sleeps at the device for each request, whoever takes it. While there are requests that take
//! long, who has come to the device may stay there.
//!
//! Invariant: while requests can come there is a thread at the device, or one called to it, or all
//! that are not do work that is short, after which they look there first. Those that wait away look
//! there themselves now and then, so that one that went without a word is not missed for long.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cenote_rt::{monotonic, tunables};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a thread stays away from the device.
const AWAY: Duration = Duration::from_secs(1);
/// How long after a request that takes long nobody has to stay away.
const CROWDED: Duration = Duration::from_millis(10);
/// How much longer than it is looked out a request may take to come that is looked out for. If
/// nobody looks out, both sides have to be woken until it is here.
const BRISK: u64 = 4;
/// How often in a row it is looked out in vain.
const HOPE: u64 = 16;
/// After that, one request in so many is looked out for.
const SELDOM: u64 = 32;

/// What the threads of a mount know of each other.
#[derive(Debug)]
pub(super) struct Lookout {
    /// The kernel's device; none before it is mounted.
    device: OnceLock<OwnedFd>,
    /// LOCK: held for a few instructions.
    threads: Mutex<Threads>,
    called: Condvar,
    /// [`AWAY`], but in tests.
    away: Duration,
    /// When the last thread went to the device, nanoseconds.
    since: AtomicU64,
    /// The last request came soon after that.
    is_brisk: AtomicBool,
    /// A thread looks out.
    is_looked_out: AtomicBool,
    /// How often it may still be in vain.
    hope: AtomicU64,
    /// Requests since there is none.
    passed: AtomicU64,
    /// Until when nobody has to stay away, nanoseconds.
    crowded_until: AtomicU64,
}

#[derive(Debug)]
struct Threads {
    /// Which wait for a request there, or are about to.
    at_device: usize,
    away: usize,
    /// Of those, which are called back.
    called: usize,
    is_over: bool,
}

/// Held by a thread of a mount as long as it lives.
struct Living(Arc<Lookout>);

thread_local! {
    static LIVING: RefCell<Option<Living>> = const { RefCell::new(None) };
}

impl Drop for Living {
    fn drop(&mut self) {
        // It ends when the mount does: the others are to see that, too.
        self.0.lock().is_over = true;
        self.0.called.notify_all();
    }
}

impl Lookout {
    /// Of a mount with so many threads.
    pub(super) fn new(threads: usize) -> Self {
        let threads = Threads { at_device: threads, away: 0, called: 0, is_over: false };
        Self {
            device: OnceLock::new(),
            threads: Mutex::new(threads),
            called: Condvar::new(),
            away: AWAY,
            since: AtomicU64::new(0),
            is_brisk: AtomicBool::new(false),
            is_looked_out: AtomicBool::new(false),
            hope: AtomicU64::new(HOPE),
            passed: AtomicU64::new(0),
            crowded_until: AtomicU64::new(0),
        }
    }

    /// Tells where requests come from. Without that no thread stays away.
    pub(super) fn watch(&self, device: OwnedFd) {
        // Nobody else sets it.
        let _ = self.device.set(device);
    }

    /// Does the work of a request, on the thread that took it from the device, and returns when
    /// that is to take the next. `work` is told whether another is at the device meanwhile, which
    /// is seen to if it `is_long`.
    pub(super) fn attend(self: &Arc<Self>, is_long: bool, work: impl FnOnce(bool)) {
        LIVING.with_borrow_mut(|living| {
            living.get_or_insert_with(|| Living(Arc::clone(self)));
        });
        work(self.leave(is_long));
        self.come_back();
    }

    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread has left the device with a request. True if another is there or will be.
    fn leave(&self, is_long: bool) -> bool {
        let now = now();
        let came = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.is_brisk.store(came <= BRISK * patience(), Ordering::Relaxed);
        if is_long {
            self.crowded_until.store(now + CROWDED.as_nanos() as u64, Ordering::Relaxed);
        }
        let mut threads = self.lock();
        threads.at_device = threads.at_device.saturating_sub(1);
        if threads.is_watched() {
            return true;
        }
        if !is_long {
            drop(threads);
            if !self.is_any_there() {
                return false;
            }
            threads = self.lock();
        }
        let is_any_away = threads.away > threads.called;
        threads.called += usize::from(is_any_away);
        let is_watched = threads.is_watched();
        // Not while it is locked: who is called locks it.
        drop(threads);
        if is_any_away {
            self.called.notify_one();
        }
        is_watched
    }

    /// A thread is done with its request.
    fn come_back(&self) {
        let since = now();
        let may_stay = self.device.get().is_none()
            || since < self.crowded_until.load(Ordering::Relaxed)
            || self.is_any_there();
        let mut threads = self.lock();
        if !may_stay && threads.is_watched() && !threads.is_over {
            return self.stay_away(threads);
        }
        threads.at_device += 1;
        drop(threads);
        self.since.store(since, Ordering::Relaxed);
        if self.is_brisk.load(Ordering::Relaxed)
            && self.is_hopeful()
            && !self.is_looked_out.swap(true, Ordering::Relaxed)
        {
            let is_found = self.look_out(since + patience());
            // Nobody else does so meanwhile.
            let hope = if is_found { HOPE } else { self.hope.load(Ordering::Relaxed) };
            let left = hope.saturating_sub(u64::from(!is_found));
            self.hope.store(left, Ordering::Relaxed);
            self.is_looked_out.store(false, Ordering::Relaxed);
        }
    }

    /// Until it is called, or has been away for long.
    fn stay_away(&self, mut threads: MutexGuard<'_, Threads>) {
        threads.away += 1;
        let may_stay = |threads: &mut Threads| threads.called == 0 && !threads.is_over;
        let waited = self.called.wait_timeout_while(threads, self.away, may_stay);
        let (mut threads, _) = waited.unwrap_or_else(PoisonError::into_inner);
        threads.away -= 1;
        // Whoever was called: another that is away would do as well.
        threads.called = threads.called.saturating_sub(1).min(threads.away);
        threads.at_device += 1;
    }

    /// Whether it is worth looking out.
    fn is_hopeful(&self) -> bool {
        self.hope.load(Ordering::Relaxed) > 0
            || self.passed.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM)
    }

    /// Until there is a request, or none came until `end`. True if there is one.
    fn look_out(&self, end: u64) -> bool {
        loop {
            if self.is_any_there() {
                return true;
            }
            if now() >= end {
                return false;
            }
            // Whoever is to send it may need this processor.
            std::thread::yield_now();
        }
    }

    /// Whether there is a request, or the end of the mount.
    fn is_any_there(&self) -> bool {
        let Some(device) = self.device.get() else { return false };
        let mut watched = [PollFd::new(device, PollFlags::IN)];
        // What cannot be asked is read.
        !matches!(poll(&mut watched, Some(&Timespec::default())), Ok(0))
    }
}

impl Threads {
    /// Whether one is at the device, or called to it.
    fn is_watched(&self) -> bool {
        self.at_device + self.called > 0
    }
}

fn now() -> u64 {
    monotonic().as_nanos() as u64
}

/// How long a thread looks out, nanoseconds. There is nothing in it where it would look out on the
/// processor of whoever is to send the next request.
fn patience() -> u64 {
    static IS_ALONE: OnceLock<bool> = OnceLock::new();
    let is_alone = || std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
    if *IS_ALONE.get_or_init(is_alone) { 0 } else { tunables::MOUNT_LOOKOUT_US.get() * 1000 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{JoinHandle, spawn};

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    /// Long enough for what happens, and not too long to hear that it does not.
    const SOON: Duration = Duration::from_secs(20);

    /// Threads at a device, and where requests of theirs are put.
    fn at_device(threads: usize) -> (Arc<Lookout>, std::io::PipeWriter) {
        let (device, requests) = std::io::pipe().expect("a pipe");
        let lookout = Arc::new(Lookout { away: HOUR, ..Lookout::new(threads) });
        lookout.watch(device.into());
        (lookout, requests)
    }

    /// A thread that does one short request; it is told whether another was at the device.
    fn one_request(lookout: &Arc<Lookout>) -> (JoinHandle<()>, Receiver<bool>) {
        let (lookout, (done, is_done)) = (Arc::clone(lookout), channel());
        let thread = spawn(move || {
            let mut is_watched = false;
            lookout.attend(false, |is_replaced| is_watched = is_replaced);
            done.send(is_watched).expect("heard");
        });
        (thread, is_done)
    }

    /// How many are away, and how many at the device.
    fn threads(lookout: &Lookout) -> (usize, usize) {
        let threads = lookout.lock();
        (threads.away, threads.at_device)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let end = monotonic() + SOON;
        while !is_so() {
            assert!(monotonic() < end, "it does not come to that");
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_is_at_the_device_and_the_others_come_when_called() {
        let (lookout, _requests) = at_device(2);
        let (thread, is_done) = one_request(&lookout);
        wait_until(|| lookout.lock().away == 1);
        // Short work is done before anybody has come.
        lookout.attend(false, |is_replaced| assert!(!is_replaced));
        assert_eq!(threads(&lookout), (1, 1));
        lookout.attend(true, |is_replaced| {
            assert!(is_replaced);
            assert_eq!(is_done.recv_timeout(SOON), Ok(true));
        });
        thread.join().expect("ends");
        // Both are there now, since what takes long may come again.
        assert_eq!(threads(&lookout), (0, 2));
    }

    #[test]
    fn a_request_that_is_there_already_calls_another_or_is_taken_by_who_is_done() {
        let (lookout, mut requests) = at_device(2);
        let (thread, is_done) = one_request(&lookout);
        wait_until(|| lookout.lock().away == 1);
        requests.write_all(b"r").expect("written");
        lookout.attend(false, |is_replaced| assert!(is_replaced));
        assert_eq!(is_done.recv_timeout(SOON), Ok(true));
        thread.join().expect("ends");
        assert_eq!(threads(&lookout), (0, 2));
    }

    #[test]
    fn all_hear_of_the_end() {
        let (lookout, requests) = at_device(2);
        let (thread, is_done) = one_request(&lookout);
        wait_until(|| lookout.lock().away == 1);
        drop(requests);
        let (last, _is_done) = one_request(&lookout);
        last.join().expect("ends");
        assert_eq!(is_done.recv_timeout(SOON), Ok(true));
        thread.join().expect("ends");
    }

    #[test]
    fn a_thread_that_nobody_calls_comes_back_itself() {
        let (device, _requests) = std::io::pipe().expect("a pipe");
        let lookout = Lookout { away: Duration::from_millis(1), ..Lookout::new(2) };
        lookout.watch(device.into());
        let lookout = Arc::new(lookout);
        let (thread, is_done) = one_request(&lookout);
        assert_eq!(is_done.recv_timeout(SOON), Ok(true));
        thread.join().expect("ends");
    }

    #[test]
    fn who_looks_out_sees_a_request() {
        let (lookout, mut requests) = at_device(1);
        let watcher = Arc::clone(&lookout);
        let thread = spawn(move || watcher.look_out(now() + HOUR.as_nanos() as u64));
        requests.write_all(b"r").expect("written");
        wait_until(|| thread.is_finished());
        assert!(thread.join().expect("ends"));
    }

    #[test]
    fn looking_out_in_vain_is_given_up_until_it_is_not() {
        let (lookout, mut requests) = at_device(1);
        let is_tried = || {
            lookout.is_brisk.store(true, Ordering::Relaxed);
            let before = lookout.passed.load(Ordering::Relaxed);
            lookout.lock().at_device = 0;
            lookout.come_back();
            let passed = lookout.passed.load(Ordering::Relaxed);
            passed == before || before.is_multiple_of(SELDOM)
        };
        assert!((0..HOPE).all(|_| is_tried()));
        assert_eq!(lookout.hope.load(Ordering::Relaxed), 0);
        assert_eq!((0..SELDOM * 4).filter(|_| is_tried()).count(), 4);
        requests.write_all(b"r").expect("written");
        assert_eq!((0..SELDOM).filter(|_| is_tried()).count(), SELDOM as usize);
        assert_eq!(lookout.hope.load(Ordering::Relaxed), HOPE);
    }
}
