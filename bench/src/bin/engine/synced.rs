//! Writers that each repeatedly write 8K to their own file and wait until it is durable.

use std::sync::Arc;

use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_rt::Result;

use crate::args::Args;
use crate::pool::{self, Contents};
use crate::random::join;
use crate::usage::Clock;

const RECORD: u64 = 8 << 10;
/// Records of a file.
const RECORDS: u64 = 1024;

pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let (dir, writers, count) = (args.word(0)?, args.number::<u64>(1)?, args.number::<u64>(2)?);
    let mount = pool::mount(dir, 4 << 30, RECORD).await?;
    let me = Credentials::root();
    let bytes: Arc<[u8]> = Contents::new().chunk(RECORD).into();
    let mut files = Vec::new();
    for writer in 0..writers {
        let new = NewNode::new(NewKind::Regular, 0o644);
        let name = format!("writer-{writer}");
        let file = mount.create(&me, mount.root(), name.as_bytes(), &new).await?.object;
        mount.write(&me, file, 0, &vec![1; (RECORD * RECORDS) as usize], plain()).await?;
        files.push(file);
    }
    mount.engine().sync().await?;
    let clock = Clock::start();
    let tasks = files.into_iter().map(|file| {
        let (mount, bytes) = (Arc::clone(&mount), Arc::clone(&bytes));
        cenote_rt::spawn(async move {
            let me = Credentials::root();
            for number in 0..count / writers {
                let options = WriteOptions { is_sync: true, ..plain() };
                mount.write(&me, file, number % RECORDS * RECORD, &bytes, options).await?;
            }
            Ok(())
        })
    });
    join(tasks.collect()).await?;
    clock.tell("durable write", "writes/s", count as f64);
    let flushes = mount.engine().tree().leaves().map(|(_, leaf)| leaf.stats().flushes);
    println!("flushes: {}", flushes.sum::<u64>());
    mount.engine().export().await
}

fn plain() -> WriteOptions {
    WriteOptions::default()
}
