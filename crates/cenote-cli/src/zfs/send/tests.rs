//! Sends of a pool that changes meanwhile, and to readers that go away.

use std::io::{self, Write};
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::stream::{HeaderType, Record};
use cenote_pool::OpenOptions;
use cenote_pool::dsl::Hold;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Kind, OwnRuntime};
use cenote_stream::StreamReader;
use cenote_testkit::golden::PrivateFolder;

use super::*;

/// Bytes of a device.
const SIZE: u64 = 64 << 20;

/// A pool `p` that is open for writing.
struct OpenPool {
    folder: PrivateFolder,
    runtime: Arc<OwnRuntime>,
    engine: Arc<Engine>,
}

/// A reader of a stream that does something after so many bytes.
struct Reader<'a> {
    bytes: Vec<u8>,
    after: usize,
    act: Option<Box<dyn FnOnce() -> io::Result<()> + Send + 'a>>,
}

impl Write for Reader<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        match self.act.take_if(|_| self.bytes.len() > self.after) {
            Some(act) => act().map(|()| bytes.len()),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl OpenPool {
    /// Makes a pool with these commands of `zfs`, and opens it.
    fn new(name: &str, lines: &[String]) -> Self {
        let folder = PrivateFolder::create(name);
        let device = std::fs::File::create(folder.path().join("d0")).unwrap();
        device.set_len(SIZE).unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let cenote = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let done = crate::run_captured(&words);
            assert_eq!((done.1.as_str(), done.2), ("", 0), "{line}");
        };
        cenote(&format!("zpool --embedded -d {path} create -O mountpoint=none p d0"));
        for line in lines {
            cenote(&format!("zfs --embedded -d {path} {line}"));
        }
        let runtime = OwnRuntime::new(2).unwrap();
        let engine = runtime.block_on(async {
            let paths = vec![folder.path().to_owned()];
            let found = scan(&ScanOptions { paths }).await.unwrap();
            Engine::open(found.find("p").unwrap(), &OpenOptions::default()).await.unwrap()
        });
        Self { engine: engine.unwrap(), folder, runtime: Arc::new(runtime) }
    }

    /// Two snapshots of two file systems each, and a clone that comes first by name.
    fn usual(name: &str) -> Self {
        let lines = [
            "create p/x",
            "create p/x/y",
            "snapshot -r p/x@1",
            "clone p/x@1 p/c",
            "snapshot -r p@2",
        ];
        Self::new(name, &lines.map(str::to_owned))
    }

    /// Sends, and does something as soon as the reader has more than `after` bytes.
    fn send<'a>(
        &self,
        line: &str,
        after: usize,
        act: impl FnOnce() -> io::Result<()> + Send + 'a,
    ) -> (Vec<u8>, CommandResult) {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let parsed = getopt::parse(&args, OPTIONS, &LONGS).unwrap();
        let mut reader = Reader { bytes: Vec::new(), after, act: Some(Box::new(act)) };
        let mut err = Vec::new();
        let io = &mut Io { out: &mut reader, err: &mut err };
        let command = Command::check(parsed, io).unwrap();
        let paths = vec![self.folder.path().to_str().unwrap().to_owned()];
        let source = Source { paths, embedded: true, ..Source::default() };
        let done = self.runtime.block_on(async {
            // The state on the device is the one that the engine shows.
            self.engine.sync().await.unwrap();
            let mut plan = plan_of(&command, &source, io).await?;
            plan.place = Place::Engine(Arc::clone(&self.engine));
            send_plan(&command, &source, &plan, io).await
        });
        (reader.bytes, done.unwrap())
    }

    /// Runs work on the pool while another thread sends.
    fn meanwhile<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| self.runtime.block_on(work).unwrap()).join().unwrap()
        })
    }

    async fn holds(&self, name: &str) -> Vec<Hold> {
        let view = self.engine.view().await.unwrap();
        view.dataset(name).await.unwrap().holds().await.unwrap()
    }

    fn is_held(&self, name: &str) -> bool {
        !self.runtime.block_on(self.holds(name)).unwrap().is_empty()
    }
}

/// The snapshots that a stream begins, and whether it ends as it should.
fn snapshots(bytes: &[u8]) -> (Vec<String>, bool) {
    let (mut names, mut is_complete) = (Vec::new(), true);
    for item in StreamReader::new(bytes) {
        match item.map(|item| item.record) {
            Ok(Record::Begin(begin)) if begin.header == HeaderType::Substream => {
                names.push(String::from_utf8(begin.to_name).unwrap());
            }
            Ok(_) => {}
            Err(_) => is_complete = false,
        }
    }
    (names, is_complete)
}

/// In the order of OpenZFS: `p/c` is a clone of `p/x@1`.
const ALL: [&str; 7] = ["p@2", "p/x@1", "p/x@2", "p/x/y@1", "p/x/y@2", "p/c@2", ""];

#[test]
fn snapshots_of_a_package_are_held_while_it_is_sent() {
    let pool = OpenPool::usual("send-holds");
    let (bytes, done) = pool.send("-R p@2", 100, || {
        pool.meanwhile(async {
            for name in &ALL[..6] {
                let holds = pool.holds(name).await;
                assert_eq!(holds.len(), 1, "{name}");
                assert!(holds[0].tag.starts_with(".send-"), "{name}");
                let error = pool.engine.snapshots().destroy(name).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Busy, "{name}");
            }
        });
        Ok(())
    });
    assert_eq!(done, Ok(()));
    let (names, is_complete) = snapshots(&bytes);
    assert_eq!((&names[..], is_complete), (&ALL.map(str::to_owned)[..6], true));
    assert!(!ALL[..6].iter().any(|name| pool.is_held(name)));
    // From a state that nobody writes the same is sent.
    let path = pool.folder.path().to_str().unwrap().to_owned();
    let line = format!("cenote zfs --embedded -d {path} send -R p@2");
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(crate::run(&words, &mut Io { out: &mut out, err: &mut err }), 0);
    assert!(out == bytes);
}

#[test]
fn a_reader_that_goes_away_leaves_nothing_behind() {
    let pool = OpenPool::usual("send-pipe");
    for after in [100, 2000, 10_000] {
        let (bytes, done) =
            pool.send("-R p@2", after, || Err(io::Error::from(io::ErrorKind::BrokenPipe)));
        assert_eq!(done, Err(Exit::Pipe), "{after}");
        assert!(!snapshots(&bytes).1, "{after}");
        assert!(!ALL[..6].iter().any(|name| pool.is_held(name)), "{after}");
    }
}

/// Whatever is renamed or replaced meanwhile: what is sent is what was planned, or the stream ends
/// with an error and has no end.
#[test]
fn a_pool_that_changes_meanwhile_gives_no_wrong_stream() {
    let pool = OpenPool::usual("send-changes");
    let (bytes, done) = pool.send("-R p@2", 100, || {
        pool.meanwhile(async { pool.engine.datasets().rename("p/x", "p/z").await.unwrap() });
        Ok(())
    });
    assert_eq!(done, Err(Exit::failed("cannot open 'p/x@1': dataset does not exist")));
    assert_eq!(snapshots(&bytes), (vec!["p@2".to_owned()], false));
    assert!(!["p@2", "p/z@1", "p/z@2", "p/c@2"].iter().any(|name| pool.is_held(name)));

    let (bytes, done) = pool.send("-I @1 p/z@2", 100, || {
        pool.meanwhile(async {
            let snapshots = pool.engine.snapshots();
            snapshots.rename("p/z", "2", "was2", false).await.unwrap();
            snapshots.create(vec!["p/z@2".to_owned()]).await.unwrap();
        });
        Ok(())
    });
    let why = "warning: cannot send 'p/z@2': it was replaced while it was sent";
    assert_eq!(done, Err(Exit::failed(why)));
    assert_eq!(snapshots(&bytes), (Vec::new(), false));
    assert!(!pool.is_held("p/z@was2"));
}

/// Each part of a long package is planned when its turn has come.
#[test]
fn a_package_of_many_snapshots_is_sent() {
    let pool = OpenPool::new("send-many", &["create p/a".to_owned()]);
    let names: Vec<String> = (0..300).map(|number| format!("p/a@{number:04}")).collect();
    pool.runtime
        .block_on(async {
            for name in &names {
                pool.engine.snapshots().create(vec![name.clone()]).await.unwrap();
            }
        })
        .unwrap();
    let (bytes, done) = pool.send("-R p/a@0299", usize::MAX, || Ok(()));
    assert_eq!(done, Ok(()));
    assert_eq!(snapshots(&bytes), (names.clone(), true));
    assert!(!names.iter().any(|name| pool.is_held(name)));
}
