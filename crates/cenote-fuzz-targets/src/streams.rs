//! Send streams, and what is in them.

use std::hint::black_box;

use cenote_ondisk::blkptr::BLOCK_SIZE_MAX;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{RECORD_LEN, Record, RecordLimits, StreamFeatures};
use cenote_stream::{BeginPayload, Package, ResumeToken, StreamReader, StreamWriter};

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

fn read(reader: StreamReader<&[u8]>) {
    for item in reader.map_while(Result::ok) {
        assert_eq!(item.record.payload_len(), item.payload.len() as u64);
        black_box(item);
    }
}
