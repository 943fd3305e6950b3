//! Measures reading a device from start to end: `read_speed PATH [BYTES_PER_READ] [IN_FLIGHT]`.
//!
//! For comparison with `dd bs=1M` on a cold page cache, and between the ways of reading
//! (`CENOTE_IO_URING=0`; a fourth argument `direct` bypasses the page cache).

use std::collections::VecDeque;

use cenote_device::{FileDevice, OpenMode};
use cenote_rt::{BufMut, tunables};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("no path given")?.clone();
    let len: u64 = args.get(1).map_or(Ok(1 << 20), |text| text.parse())?;
    let in_flight: usize = args.get(2).map_or(Ok(4), |text| text.parse())?;
    if args.get(3).is_some_and(|word| word == "direct") {
        tunables::set("cenote_direct_io", "1")?;
    }
    cenote_rt::block_on(0, async move {
        let device = FileDevice::open(&path, OpenMode::ReadOnly)?;
        let (size, start) = (device.info().size, cenote_rt::monotonic());
        let mut reads = VecDeque::new();
        let (mut at, mut done) = (0, 0);
        while done < size {
            while reads.len() < in_flight && at < size {
                let (device, len) = (device.clone(), len.min(size - at) as usize);
                let read = async move { device.read(at, BufMut::for_filling(len)).await };
                reads.push_back(cenote_rt::spawn(read));
                at += len as u64;
            }
            if let Some(read) = reads.pop_front() {
                done += read
                    .await
                    .map_err(|error| cenote_rt::Error::new(cenote_rt::Kind::Io, error))??
                    .len() as u64;
            }
        }
        let seconds = cenote_rt::monotonic().saturating_sub(start).as_secs_f64();
        println!("{done} bytes, {seconds:.2} s, {:.0} MB/s", done as f64 / seconds / 1e6);
        Ok::<_, cenote_rt::Error>(())
    })??;
    Ok(())
}
