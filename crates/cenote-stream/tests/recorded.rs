//! Streams that OpenZFS sent are read whole, and written again byte for byte.

use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::Record;
use cenote_stream::{
    BeginPayload, Item, Package, ResumeToken, StreamError, StreamReader, StreamWriter, frame,
};
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::streams::{RecordedStream, recorded};

/// Streams that were damaged on purpose.
const INVALID: [&str; 2] = ["truncated", "flipped"];

fn pools() -> impl Iterator<Item = Golden> {
    ["g-streams", "g-send", "g-send2"].into_iter().filter_map(golden)
}

fn read_all(stream: &[u8]) -> Result<Vec<Item>, StreamError> {
    StreamReader::new(stream).collect()
}

fn write_all(items: &[Item]) -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new());
    let mut is_header = false;
    for item in items {
        if item.is_package && matches!(item.record, Record::End(_)) {
            writer.end_package(is_header).expect("memory takes everything");
        } else {
            writer.write(&item.record, &item.payload).expect("memory takes everything");
        }
        is_header = item.is_package;
    }
    writer.into_inner()
}

fn valid_streams() -> impl Iterator<Item = RecordedStream> {
    let streams = pools().flat_map(|golden| recorded(&golden));
    streams.filter(|stream| !INVALID.contains(&stream.name.as_str()))
}

#[test]
fn what_was_sent_is_read_and_written_again() {
    for stream in valid_streams() {
        let items =
            read_all(&stream.bytes).unwrap_or_else(|error| panic!("{}: {error}", stream.name));
        assert!(write_all(&items) == stream.bytes, "{}", stream.name);
    }
}

/// Headers of packages are encoded again byte for byte; payloads of substreams keep their values.
#[test]
fn headers_and_payloads_are_decoded() {
    let (mut packages, mut keys, mut redacted, mut resumed) = (0, 0, 0, 0);
    for stream in valid_streams() {
        for item in read_all(&stream.bytes).unwrap() {
            let Record::Begin(_) = item.record else { continue };
            if item.is_package {
                if item.payload.is_empty() {
                    continue;
                }
                packages += 1;
                let package = Package::decode(&item.payload).expect(&stream.name);
                assert!(package.encode() == item.payload, "{}: {package:?}", stream.name);
            } else {
                let payload = BeginPayload::decode(&item.payload).expect(&stream.name);
                keys += usize::from(payload.crypt_keydata.is_some());
                redacted += usize::from(payload.redact_snaps.is_some());
                resumed += usize::from(payload.resume.is_some());
                assert_eq!(BeginPayload::decode(&payload.encode()).as_ref(), Ok(&payload));
                let native = cenote_ondisk::nvlist::Encoding::Native(Endian::Little);
                let is_same = payload.to_list().encode(native) == item.payload;
                assert!(is_same || item.payload.is_empty(), "{}: {payload:?}", stream.name);
            }
        }
    }
    if cenote_testkit::golden::find("g-send2").is_some() {
        assert!(packages > 10 && keys > 3 && redacted > 1 && resumed > 0, "{packages} {keys}");
    }
}

#[test]
fn the_recorded_resume_token_is_decoded() {
    let Some(golden) = golden("g-streams") else { return };
    let path = golden.folder().join("streams/resume.token.txt");
    let text = std::fs::read_to_string(path).expect("resume token");
    let token = ResumeToken::decode(text.trim()).expect("valid");
    assert_eq!((token.object, token.offset, token.bytes), (2, 0, 2248));
    assert_eq!(ResumeToken::decode(&token.encode()), Ok(token));
}

/// The other byte order gives the same records.
#[test]
fn a_foreign_stream_reads_the_same() {
    for stream in valid_streams() {
        let items = read_all(&stream.bytes).unwrap();
        let mut foreign = Vec::new();
        let mut checksum = cenote_stream::RunningChecksum::new(Endian::Big);
        for item in &items {
            let is_end = item.is_package && matches!(item.record, Record::End(_));
            let mut record = item.record.clone();
            if let Record::End(end) = &mut record
                && is_end
                && end.checksum != [0; 4]
            {
                end.checksum = checksum.words();
            }
            let bytes = frame(&mut checksum, Endian::Big, &record, &item.payload, is_end);
            foreign.extend_from_slice(&bytes);
            foreign.extend_from_slice(&item.payload);
        }
        let again = read_all(&foreign).unwrap_or_else(|error| panic!("{}: {error}", stream.name));
        assert_eq!(again.len(), items.len());
        for (a, b) in again.iter().zip(&items) {
            let is_end = matches!(a.record, Record::End(_));
            assert!(is_end || a == b, "{}: byte {}", stream.name, a.offset);
        }
    }
}

/// Damaged streams end with an error that has the offset.
#[test]
fn invalid_streams_are_refused() {
    let streams = pools().flat_map(|golden| recorded(&golden));
    for stream in streams.filter(|stream| INVALID.contains(&stream.name.as_str())) {
        let error = read_all(&stream.bytes).expect_err(&stream.name).to_string();
        let expected =
            if stream.name == "truncated" { "ends early, at byte 60000" } else { "checksum" };
        assert!(error.contains(expected), "{}: {error}", stream.name);
    }
}

/// Whatever bit flips and wherever the stream ends: an error, and nothing is returned that is not
/// what was sent.
#[test]
fn flipped_bits_and_cuts_are_found() {
    let Some(golden) = golden("g-streams") else { return };
    let stream = cenote_testkit::streams::recorded_stream(&golden, "emb-ec");
    let items = read_all(&stream.bytes).unwrap();
    let mut rng = cenote_testkit::rng::seeded("flipped_bits_and_cuts_are_found", 1);
    for round in 0..3000 {
        let mut bytes = stream.bytes.clone();
        let at = rng.below(bytes.len() as u64) as usize;
        if round % 2 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << rng.below(8);
        }
        let mut reader = StreamReader::new(&bytes[..]);
        let mut count = 0;
        let error = loop {
            match reader.next() {
                Some(Ok(item)) => {
                    let is_same = items.get(count) == Some(&item);
                    // The header of the first record has no checksum until the next one.
                    assert!(is_same, "round {round}, byte {at}: item {count}");
                    count += 1;
                }
                None => panic!("round {round}, byte {at}: read to the end"),
                Some(Err(error)) => break error,
            }
        };
        assert!(!error.to_string().is_empty());
    }
}
