//! Admits clients of a socket: a thread each, and a share of the slots for each user.
//!
//! ```text
//!   accept ──> which uid? ──> a slot of its share ──> a thread ──> work
//!                    │                `─ no thread to be had: a spare one, for trusted users
//!                    `─ no slot left: refused, in a thread of its own while there are few of these
//! ```
//!
//! The accepting thread only accepts: it never reads from a client, nor writes if that could block.
//!
//! Invariants (docs/design/rules.md, rule 5)
//! * SHARE-1  Users other than root and the daemon's own cannot take a trusted user's slot, and one
//!   of them cannot take all slots of the others.
//! * SHARE-5  A slot is taken until its client has ended.
//!
//! Guarantees
//! * SHARE-2  A trusted user is admitted even if the process is out of descriptors or threads: some
//!   of both are reserved.
//! * SHARE-3  Closing a connection may block (a passed socket may linger), so a connection is
//!   closed by its own thread whenever one can be started.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};

use super::log::{self, Rarely};

/// Pause after a failed `accept`, for example when file descriptors run out.
const PAUSE: Duration = Duration::from_millis(100);
/// Stack of a command's thread, as large as that of a main thread.
const STACK: usize = 8 << 20;
/// Threads that only refuse clients.
const REFUSING_MAX: usize = 16;
/// Threads reserved for trusted clients, used if no other thread can be started.
const SPARE_THREADS: usize = 2;
/// Descriptors reserved for trusted clients, released if the process runs out of them.
const SPARE_DESCRIPTORS: usize = 8;

/// Maximum numbers of concurrent clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// Clients of root and the daemon's own user.
    pub(super) trusted: usize,
    /// Clients of all other users together.
    pub(super) others: usize,
    /// Clients of each other user.
    pub(super) each: usize,
}

/// A socket and the handling of its clients.
pub(super) trait Service: Send + Sync + 'static {
    /// A connection.
    type Stream: Send + 'static;

    /// Waits for a client, and returns it with its uid.
    fn accept(&self) -> std::io::Result<(Self::Stream, u32)>;

    /// Serves a client.
    fn serve(&self, stream: Self::Stream);

    /// Rejects a client. Must not block.
    fn refuse(&self, stream: Self::Stream);
}

/// Whether this user has full rights: root, and the daemon's own user.
pub(super) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Serves clients in threads of this name until the process ends.
pub(super) fn serve(
    name: &'static str,
    shares: Shares,
    service: Arc<impl Service>,
    mut descriptors: SpareDescriptors,
) -> std::io::Result<()> {
    let desk = Arc::new(Desk { shares, taken: Mutex::with_default(Rank::DaemonSlots) });
    let spares = spare_threads(name)?;
    spawn(name, move || {
        loop {
            descriptors.refill();
            match service.accept() {
                Ok((stream, uid)) => admit(name, &desk, &spares, &service, stream, uid),
                Err(error) => {
                    if descriptors.release() {
                        take_one_trusted(name, &desk, &spares, &service);
                    } else {
                        tell_not_accepted(name, &error);
                        pause();
                    }
                }
            }
        }
    })
}

/// Releases the reserved descriptors to accept a client, which is served only if it is trusted.
fn take_one_trusted<S: Service>(
    name: &'static str,
    desk: &Arc<Desk>,
    spares: &SyncSender<Job>,
    service: &Arc<S>,
) {
    match service.accept() {
        Ok((stream, uid)) if is_trusted(uid) => admit(name, desk, spares, service, stream, uid),
        Ok((stream, _)) => service.refuse(stream),
        Err(error) => tell_not_accepted(name, &error),
    }
    // Descriptors become available only when others are closed.
    pause();
}

/// Logs that no thread could be started for a client, which happens again and again as well.
fn tell_not_served(name: &str, uid: u32, error: &std::io::Error) {
    static TOLD: Rarely = Rarely::new();
    if let Some(skipped) = TOLD.pass() {
        log::warn!(what = %name, uid = %uid, cause = %error, skipped = %skipped, "client not served");
    }
}

/// Logs that no client was accepted, which happens again and again while there are too many.
fn tell_not_accepted(name: &str, error: &std::io::Error) {
    static TOLD: Rarely = Rarely::new();
    if let Some(skipped) = TOLD.pass() {
        log::warn!(what = %name, cause = %error, skipped = %skipped, "no client accepted");
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread outside of the runtime")]
fn pause() {
    std::thread::sleep(PAUSE);
}

fn admit<S: Service>(
    name: &'static str,
    desk: &Arc<Desk>,
    spares: &SyncSender<Job>,
    service: &Arc<S>,
    stream: S::Stream,
    uid: u32,
) {
    let Some(slot) = desk.enter(uid) else {
        if let Some(slot) = desk.enter_refusal() {
            let service = Arc::clone(service);
            // If the thread cannot be started, the connection is dropped, which rejects the client
            // as well.
            let _ = spawn(name, move || {
                service.refuse(stream);
                drop(slot);
            });
        }
        return;
    };
    // Passed in a cell, so that the client survives if the thread cannot be started.
    let cell = Arc::new(Mutex::new(Rank::DaemonClient, Some((stream, slot))));
    let (taken, served) = (Arc::clone(&cell), Arc::clone(service));
    let job = move || {
        let client = taken.lock().take();
        if let Some((stream, slot)) = client {
            served.serve(stream);
            drop(slot);
        }
    };
    if let Err(error) = spawn(name, job.clone()) {
        let is_served = is_trusted(uid) && spares.try_send(Box::new(job)).is_ok();
        if !is_served {
            tell_not_served(name, uid, &error);
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}

/// Work for a spare thread.
type Job = Box<dyn FnOnce() + Send>;

/// Starts the spare threads. Only an idle one receives a job.
fn spare_threads(name: &str) -> std::io::Result<SyncSender<Job>> {
    let (sender, jobs) = sync_channel::<Job>(0);
    let jobs: Arc<Mutex<Receiver<Job>>> = Arc::new(Mutex::new(Rank::DaemonJobs, jobs));
    for _ in 0..SPARE_THREADS {
        let jobs = Arc::clone(&jobs);
        spawn(name, move || {
            loop {
                // LOCK: held while this thread waits for a job, and released before it runs the
                // job.
                let job = jobs.lock().recv();
                let Ok(job) = job else { return };
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            }
        })?;
    }
    Ok(sender)
}

/// Reserved descriptors.
#[derive(Debug, Default)]
pub(super) struct SpareDescriptors(Vec<File>);

impl SpareDescriptors {
    /// Reserves them before pools and mounts may take all there are (SHARE-2).
    pub(super) fn reserve() -> Self {
        let mut reserved = Self::default();
        reserved.refill();
        reserved
    }

    fn refill(&mut self) {
        while self.0.len() < SPARE_DESCRIPTORS {
            let Ok(file) = File::open("/dev/null") else { return };
            self.0.push(file);
        }
    }

    /// Releases the descriptors; returns whether there were any.
    fn release(&mut self) -> bool {
        let were_there = !self.0.is_empty();
        self.0.clear();
        were_there
    }
}

/// Allocates slots.
#[derive(Debug)]
struct Desk {
    shares: Shares,
    /// Held for single reads and updates.
    taken: Mutex<Taken>,
}

/// Allocated slots.
#[derive(Debug, Default)]
struct Taken {
    trusted: usize,
    /// By uid.
    others: BTreeMap<u32, usize>,
    refusing: usize,
}

impl Desk {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }

    /// Allocates a slot for a client of this user, `None` if the user's share is used up.
    fn enter(self: &Arc<Self>, uid: u32) -> Option<Slot> {
        let mut taken = self.taken();
        let kind = if is_trusted(uid) {
            if taken.trusted >= self.shares.trusted {
                return None;
            }
            taken.trusted += 1;
            Kind::Trusted
        } else {
            let all: usize = taken.others.values().sum();
            let own = taken.others.get(&uid).copied().unwrap_or(0);
            let is_share_used_up = own >= self.shares.each && !is_on(Bug::NoSharePerUser);
            // Checks SHARE-1.
            if is_share_used_up || all >= self.shares.others {
                return None;
            }
            // Only users with clients are in the table, regardless of the number of rejections.
            taken.others.insert(uid, own + 1);
            Kind::Other(uid)
        };
        Some(Slot { desk: Arc::clone(self), kind })
    }

    /// Allocates one of the few slots for rejecting a client.
    fn enter_refusal(self: &Arc<Self>) -> Option<Slot> {
        let mut taken = self.taken();
        if taken.refusing >= REFUSING_MAX {
            return None;
        }
        taken.refusing += 1;
        Some(Slot { desk: Arc::clone(self), kind: Kind::Refusal })
    }
}

/// Kind of a slot.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Trusted,
    Other(u32),
    Refusal,
}

/// An allocated slot, freed on drop.
#[derive(Debug)]
struct Slot {
    desk: Arc<Desk>,
    kind: Kind,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.desk.taken();
        match self.kind {
            Kind::Trusted => {
                // Checks SHARE-5.
                taken.trusted = taken.trusted.checked_sub(1).expect("a slot that was taken");
            }
            Kind::Refusal => {
                // Checks SHARE-5.
                taken.refusing = taken.refusing.checked_sub(1).expect("a slot that was taken");
            }
            Kind::Other(uid) => {
                // Checks SHARE-5.
                let count = taken.others.get_mut(&uid).expect("a slot that was taken");
                *count -= 1;
                if *count == 0 {
                    taken.others.remove(&uid);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::seeded;
    use cenote_testkit::bugs;

    use super::*;

    /// Each seeded bug of rule 5 is found by one of these tests.
    #[test]
    fn seeded_bugs_of_limits_are_found() {
        bugs::check_found(&Bug::OF_LIMITS, "panicked at", |bug| match bug {
            Bug::NoSharePerUser => "daemon::accept::tests::client_slots_are_limited_per_user",
            Bug::DeadlineExtended => "daemon::streams::tests::deadlines_cover_all_bytes",
            _ => "daemon::spool::tests::spool_refuses_more_than_the_share_of_a_user",
        });
    }

    #[test]
    fn client_slots_are_limited_per_user() {
        seeded::set_from_environment();
        let shares = Shares { trusted: 2, others: 3, each: 2 };
        let desk = Arc::new(Desk { shares, taken: Mutex::with_default(Rank::DaemonSlots) });
        let one: Vec<_> = (0..3).map(|_| desk.enter(70_001)).collect();
        assert_eq!(one.iter().flatten().count(), 2);
        let other: Vec<_> = (0..3).map(|_| desk.enter(70_002)).collect();
        assert_eq!(other.iter().flatten().count(), 1);
        let root: Vec<_> = (0..3).map(|_| desk.enter(0)).collect();
        assert_eq!(root.iter().flatten().count(), 2);
        drop(one);
        assert!(desk.enter(70_003).is_some());
        drop((other, root));
        let taken = desk.taken();
        assert_eq!((taken.trusted, taken.others.len()), (0, 0));
    }

    #[test]
    fn spare_threads_outlive_a_job_that_panics() {
        let jobs = spare_threads("test").unwrap();
        let (done, hears) = std::sync::mpsc::channel();
        for round in 0..4 {
            let done = done.clone();
            let mut job: Job = Box::new(move || {
                done.send(round).unwrap();
                assert!(round % 2 == 0, "as the test wants it");
            });
            while let Err(std::sync::mpsc::TrySendError::Full(back)) = jobs.try_send(job) {
                job = back;
                std::thread::yield_now();
            }
            assert_eq!(hears.recv(), Ok(round));
        }
    }
}
