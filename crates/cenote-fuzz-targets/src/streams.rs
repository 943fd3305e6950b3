//! Send streams, and what is in them.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::blkptr::BLOCK_SIZE_MAX;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{
    Begin, BeginFlags, HeaderType, RECORD_LEN, Record, RecordLimits, StreamFeatures,
};
use cenote_poolkit::PoolBuilder;
use cenote_rt::{Kind, OwnRuntime};
use cenote_stream::{
    BeginPayload, Item, Package, ReceiveOptions, Receiver, ResumeToken, StreamReader, StreamWriter,
};

/// Bytes of a payload that a test makes up, at most.
const PAYLOAD_MAX: u64 = 64 << 10;

/// A stream as it is; and its records one by one, then framed again, so that checksums that do not
/// match hide nothing.
pub fn stream(bytes: &[u8]) {
    read(StreamReader::new(bytes));
    read(StreamReader::lenient(bytes));
    for endian in [Endian::Little, Endian::Big] {
        let (records, _) = bytes.as_chunks::<RECORD_LEN>();
        let mut writer = StreamWriter::new(Vec::new());
        for record in records {
            let Ok(record) = Record::decode(record, endian) else { continue };
            let again = Record::decode(&record.encode(endian), endian);
            assert_eq!(again.as_ref(), Ok(&record));
            for features in [0, u64::MAX, 1 << 24] {
                let features = StreamFeatures::from_bits_retain(features);
                let limits =
                    RecordLimits { features, has_spill_flags: true, block_max: BLOCK_SIZE_MAX };
                black_box(record.check(&limits).is_ok());
            }
            let len = record.payload_len();
            if len <= PAYLOAD_MAX {
                let payload = vec![0; len as usize];
                writer.write(&record, &payload).expect("memory takes everything");
            }
        }
        read(StreamReader::new(&writer.into_inner()[..]));
    }
}

/// A resume token, the header of a package, and the payload of a BEGIN.
pub fn token(bytes: &[u8]) {
    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(token) = ResumeToken::decode(text.trim_end())
    {
        assert_eq!(ResumeToken::decode(&token.encode()), Ok(token));
    }
    if let Ok(package) = Package::decode(bytes) {
        // Not compared: a property may be a number that does not equal itself.
        black_box(Package::decode(&package.encode()).expect("encoded package"));
    }
    if let Ok(payload) = BeginPayload::decode(bytes) {
        assert_eq!(BeginPayload::decode(&payload.encode()), Ok(payload));
    }
}

thread_local! {
    /// A pool in memory that receives, and the runtime of its tasks.
    static POOL: Cell<Option<(OwnRuntime, Arc<Engine>)>> = const { Cell::new(None) };
}
/// Name of the dataset that is received.
const TARGET: &str = "tank/got";

/// The records of a substream, with as much of their payloads as there is, and without checksums:
/// the pool receives them or refuses them, and stays in service.
///
/// The pool is used again, because making one takes longer than receiving into it.
pub fn receive(bytes: &[u8]) {
    // After a panic the next input begins anew.
    let (runtime, engine) = POOL.take().unwrap_or_else(|| {
        let runtime = OwnRuntime::new(1).expect("a thread");
        let builder = PoolBuilder::file_system().with_size(64 << 20);
        let made = runtime.block_on(builder.create_in_memory());
        (runtime, made.expect("not in asynchronous code").0)
    });
    runtime.block_on(receive_into(&engine, items(bytes))).expect("not in asynchronous code");
    POOL.set(Some((runtime, engine)));
}

/// Returns the records of these bytes, after a BEGIN.
fn items(bytes: &[u8]) -> Vec<Item> {
    let begin = Begin {
        payload_len: 0,
        header: HeaderType::Substream,
        features: StreamFeatures::from_bits_retain(4 | 1 << 16 | 1 << 19 | 1 << 22 | 1 << 23),
        reserved: 0,
        creation_time: 1,
        objset_kind: 2,
        flags: BeginFlags::SPILL_BLOCK | BeginFlags::FREERECORDS,
        to_guid: 7,
        from_guid: 0,
        to_name: b"a@s".to_vec(),
    };
    let item = |record, payload| Item { record, payload, offset: 0, is_package: false };
    let (mut items, mut rest) = (Vec::new(), bytes);
    while let Some((record, behind)) = rest.split_first_chunk::<RECORD_LEN>() {
        rest = behind;
        let Ok(record) = Record::decode(record, Endian::Little) else { continue };
        if items.is_empty() && !matches!(record, Record::Begin(_)) {
            items.push(item(Record::Begin(Box::new(begin.clone())), Vec::new()));
        }
        let (payload, behind) = rest.split_at(record.payload_len().min(rest.len() as u64) as usize);
        rest = behind;
        let mut payload = payload.to_vec();
        // A payload that is cut has zeros instead.
        payload.resize(record.payload_len().min(PAYLOAD_MAX) as usize, 0);
        items.push(item(record, payload));
    }
    items
}

async fn receive_into(engine: &Arc<Engine>, items: Vec<Item>) {
    let mut items = items.into_iter();
    let Some(begin) = items.next() else { return };
    let (target, snapshot) = (TARGET.to_owned(), Some("s".to_owned()));
    let options = ReceiveOptions { target, snapshot, ..ReceiveOptions::default() };
    let is_sound = |kind| !matches!(kind, Kind::Invariant | Kind::Io | Kind::Corrupt);
    let receiver = Receiver::begin(engine, &begin, Endian::Little, options).await;
    let mut receiver = match receiver {
        Ok(receiver) => receiver,
        Err(error) => return assert!(is_sound(error.kind()), "{error:?}"),
    };
    let applied = async {
        for item in items {
            receiver.apply(item).await?;
        }
        receiver.finish().await
    };
    let applied = applied.await;
    match applied {
        Ok(()) => {
            drop(receiver);
            let names = vec![format!("{TARGET}@s")];
            engine.snapshots().destroy_all(names, false).await.expect("the snapshot");
            engine.datasets().destroy(TARGET).await.expect("the dataset");
        }
        Err(error) => {
            assert!(is_sound(error.kind()), "{error:?}");
            receiver.abort().await.expect("the receive ends");
        }
    }
    engine.sync().await.expect("the pool is in service");
}

fn read(reader: StreamReader<&[u8]>) {
    for item in reader.map_while(Result::ok) {
        assert_eq!(item.record.payload_len(), item.payload.len() as u64);
        black_box(item);
    }
}
