//! An alarm for a thread that waits in the kernel for more than other threads: for its io_uring.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a thread that waits for reads of an eventfd, and costs no system call while it does not.
///
/// The thread [sets](Self::set) the alarm, looks whether others have left work for it, and only
/// then waits. Whoever leaves work [sounds](Self::sound) the alarm afterwards. Both are
/// sequentially consistent: either the thread sees the work, or the alarm is sounded.
#[derive(Debug)]
pub struct Alarm {
    is_set: AtomicBool,
    fd: Arc<OwnedFd>,
}

impl Alarm {
    /// Creates an alarm that is not set.
    ///
    /// # Errors
    /// The system's error if descriptors run out.
    pub fn new() -> std::io::Result<Self> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Self { is_set: AtomicBool::new(false), fd })
    }

    /// Returns the eventfd, which the thread reads.
    #[must_use]
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The thread is about to wait: work that was left before did not wake it.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
    }

    /// The thread does not wait any more.
    pub fn unset(&self) {
        self.is_set.store(false, Ordering::SeqCst);
    }

    /// Wakes the thread, if the alarm is set.
    pub fn sound(&self) {
        if self.is_set.swap(false, Ordering::SeqCst) {
            // The write fails only if the counter is full, and then a wake-up is pending anyway.
            let _ = rustix::io::write(&*self.fd, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_sounds_once_for_each_time_that_it_is_set() {
        let alarm = Alarm::new().expect("an eventfd");
        let mut count = [0; 8];
        for sounds in 1..4 {
            alarm.sound();
            alarm.set();
            for _ in 0..sounds {
                alarm.sound();
            }
            assert_eq!(rustix::io::read(&*alarm.fd, &mut count), Ok(8));
            assert_eq!(u64::from_ne_bytes(count), 1);
            alarm.set();
            alarm.unset();
        }
    }
}
