//! Who comes to a socket is served in a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use super::log;

/// How long nobody is let in when letting in failed, as it does when descriptors run out.
const PAUSE: Duration = Duration::from_millis(100);

/// What a main thread has: commands are written for that.
const STACK: usize = 8 << 20;

/// Serves who comes, so many at a time and in threads of this name, for as long as the process
/// lives. Whoever is one too many finds the connection closed.
pub(super) fn serve<S: Send + 'static>(
    name: &'static str,
    most: usize,
    accept: impl Fn() -> std::io::Result<S> + Send + 'static,
    work: impl Fn(S) + Send + Sync + 'static,
) -> std::io::Result<()> {
    // Shared by those who are served, and so counts them.
    let work = Arc::new(work);
    spawn(name, move || {
        loop {
            let Ok(stream) = accept() else {
                #[expect(clippy::disallowed_methods, reason = "a thread outside of the runtime")]
                std::thread::sleep(PAUSE);
                continue;
            };
            if Arc::strong_count(&work) > most {
                continue;
            }
            let work = Arc::clone(&work);
            if let Err(error) = spawn(name, move || work(stream)) {
                log::warn("not served", &[("what", &name), ("cause", &error)]);
            }
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, RecvError, Sender, channel};

    /// Comes to the socket: what hears of being served, and what ends it when dropped.
    fn come(door: &Sender<(Sender<()>, Receiver<()>)>) -> (Receiver<()>, Sender<()>) {
        let ((served, hears), (ends, end)) = (channel(), channel());
        door.send((served, end)).unwrap();
        (hears, ends)
    }

    #[test]
    fn one_too_many_finds_it_closed_until_another_is_served() {
        let (door, comes) = channel();
        let accept = move || comes.recv().map_err(std::io::Error::other);
        let work = |(served, end): (Sender<()>, Receiver<()>)| {
            served.send(()).unwrap();
            assert_eq!(end.recv(), Err(RecvError));
        };
        serve("test", 2, accept, work).unwrap();
        let (first, second) = (come(&door), come(&door));
        assert_eq!((first.0.recv(), second.0.recv()), (Ok(()), Ok(())));
        assert_eq!(come(&door).0.recv(), Err(RecvError));
        drop(first);
        while come(&door).0.recv().is_err() {}
    }
}
