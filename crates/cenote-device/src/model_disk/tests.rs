//! A modelled disk: its timing, its volatile cache, and every fault.

use std::sync::Arc;

use cenote_rt::simulate;

use super::*;
use crate::model::table::{self, HDD_7200, NVME};
use crate::model::{Command, Completion, Flash, Params};
use crate::{CommandHash, InjectedFault, UnreadableSector};

const SIZE: u64 = 64 << 20;

fn disk() -> Arc<ModelDisk> {
    ModelDisk::new("disk", SIZE, Box::new(Flash::preconditioned(NVME, SIZE)))
}

fn sector(byte: u8) -> Vec<Buf> {
    vec![Buf::from(vec![byte; 200]), Buf::from(vec![byte; 312])]
}

async fn byte(disk: &ModelDisk, sector: u64) -> u8 {
    let read = disk.read(sector * 512, BufMut::zeroed(512)).await.expect("readable");
    assert!(read.iter().all(|byte| *byte == read[0]), "sector {sector} is torn");
    read[0]
}

fn run<T>(seed: u64, work: impl Future<Output = T>) -> T {
    simulate(seed, work).expect("runtime")
}

async fn join<T: Send + 'static>(tasks: Vec<cenote_rt::JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no panic"));
    }
    results
}

/// Time that a model needs for commands that are all admitted at 0.
fn model_ns(model: &mut dyn DiskModel, commands: &[Command]) -> u64 {
    for command in commands {
        model.admit(0, *command);
    }
    let mut done: Vec<Completion> = Vec::new();
    model.advance(u64::MAX, &mut done);
    done.iter().map(|done| done.at_ns).max().expect("commands")
}

#[test]
fn commands_take_the_time_of_the_model_and_complete_in_its_order() {
    for (name, params) in table::DEVICES {
        let mut rng = Rng::seeded(4);
        let offsets: Vec<u64> = (0..24).map(|_| rng.below(SIZE / 4096) * 4096).collect();
        let commands = offsets.iter().zip(1..).map(|(offset, id)| Command {
            id,
            op: Op::Read,
            offset: *offset,
            len: 4096,
        });
        let commands: Vec<Command> = commands.collect();
        let wanted = model_ns(&mut *params.build(SIZE, 9), &commands);
        let disk = ModelDisk::new(name, SIZE, params.build(SIZE, 9));
        let (took, order) = run(1, async {
            let before = cenote_rt::monotonic();
            let order = Arc::new(std::sync::Mutex::new(Vec::new()));
            let read = |offset| {
                let (disk, order) = (Arc::clone(&disk), Arc::clone(&order));
                cenote_rt::spawn(async move {
                    disk.read(offset, BufMut::zeroed(4096)).await.expect("readable");
                    order.lock().expect("not poisoned").push((cenote_rt::monotonic(), offset));
                })
            };
            join(offsets.iter().map(|offset| read(*offset)).collect()).await;
            let order = order.lock().expect("not poisoned").clone();
            (cenote_rt::monotonic().saturating_sub(before), order)
        });
        assert_eq!(took, Duration::from_nanos(wanted), "{name}");
        assert!(order.is_sorted_by_key(|(at, _)| *at), "{name}: {order:?}");
        if name.starts_with("hdd") {
            assert!(!order.iter().map(|(_, offset)| *offset).eq(offsets), "{name} reorders");
        }
        assert_eq!(disk.stats().of(Op::Read), OpCount { commands: 24, bytes: 24 * 4096 });
        assert_eq!(disk.info().is_rotational, name.starts_with("hdd"));
    }
}

#[test]
fn writes_are_visible_at_once_and_durable_after_a_later_flush() {
    let disk = disk();
    run(1, async {
        disk.write(0, sector(1)).await.expect("working");
        disk.flush().await.expect("working");
        disk.write(0, sector(2)).await.expect("working");
        disk.write(512, sector(3)).await.expect("working");
        assert_eq!([byte(&disk, 0).await, byte(&disk, 1).await], [2, 3]);
    });
    let before = disk.snapshot();
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..64 {
        // Writes of the restored copy are durable: write again.
        disk.restore(&before);
        run(seed, async {
            disk.write(0, sector(1)).await.expect("working");
            disk.flush().await.expect("working");
            disk.write(0, sector(2)).await.expect("working");
            disk.write(512, sector(4)).await.expect("working");
            let cut = disk.cut_power(&mut Rng::seeded(seed));
            assert_eq!(cut.kept + cut.lost + cut.torn, 2);
            let error = disk.read(0, BufMut::zeroed(512)).await.expect_err("no power");
            assert_eq!(error.cause(), Some(&NoPower));
            disk.restore_power();
            outcomes.insert([byte(&disk, 0).await, byte(&disk, 1).await]);
        });
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [[1, 3], [1, 4], [2, 3], [2, 4]]);
}

/// A write of the test below: its number, first sector, sectors, and whether it is durable.
type Written = (u8, u64, u64, bool);

/// Random writes and flushes by several tasks, ended by a power cut; returns the contents.
fn cut_history(seed: u64, grain: u64) -> (Vec<u8>, PowerCut) {
    const SECTORS: u64 = 64;
    let disk = ModelDisk::with_sector(
        "disk",
        SECTORS * 512,
        table::find("hdd-7200").expect("known").build(SIZE, 1),
        grain * 512,
    );
    let mut rng = Rng::seeded(seed);
    let mut history: Vec<Written> = Vec::new();
    let cut = run(seed, async {
        for _ in 0..2 + rng.below(4) {
            // A batch of writes that do not overlap, in flight together.
            let mut tasks = Vec::new();
            let (mut at, mut batch) = (0, Vec::new());
            while history.len() + batch.len() < 200 {
                let start = (at + rng.below(12)).next_multiple_of(grain);
                let len = (1 + rng.below(16)).next_multiple_of(grain);
                if start + len > SECTORS {
                    break;
                }
                at = start + len;
                let number = (history.len() + batch.len() + 1) as u8;
                batch.push((number, start, len, false));
                let disk = Arc::clone(&disk);
                tasks.push(cenote_rt::spawn(async move {
                    let bytes = Buf::from(vec![number; (len * 512) as usize]);
                    disk.write(start * 512, vec![bytes]).await
                }));
            }
            history.extend(batch);
            if rng.below(4) == 0 {
                // The power is cut while the last batch is in flight.
                cenote_rt::sleep(Duration::from_micros(300)).await;
                let cut = disk.cut_power(&mut rng);
                join(tasks).await;
                return cut;
            }
            join(tasks).await.into_iter().for_each(|result| result.expect("working"));
            if rng.below(2) == 0 {
                disk.flush().await.expect("working");
                for write in &mut history {
                    write.3 = true;
                }
            }
        }
        disk.cut_power(&mut rng)
    });
    disk.restore_power();
    let contents = run(0, async {
        disk.read(0, BufMut::zeroed((SECTORS * 512) as usize)).await.expect("readable").to_vec()
    });
    for at in 0..SECTORS {
        let bytes = &contents[(at * 512) as usize..][..512];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}: a sector is whole");
        let first = contents[(at / grain * grain * 512) as usize];
        assert_eq!(bytes[0], first, "seed {seed}: a physical sector is whole");
        // The last durable write, or one that followed it.
        let on = history.iter().filter(|(_, start, len, _)| (*start..start + len).contains(&at));
        let on: Vec<&Written> = on.collect();
        let durable = on.iter().rposition(|write| write.3);
        let mut allowed = on[durable.unwrap_or(0)..].iter().map(|write| write.0);
        let is_zero = bytes[0] == 0 && durable.is_none();
        assert!(is_zero || allowed.any(|number| number == bytes[0]), "seed {seed}, sector {at}");
    }
    (contents, cut)
}

#[test]
fn power_cuts_keep_durable_writes_and_any_part_of_the_others() {
    let mut total = PowerCut::default();
    for seed in 0..200 {
        for grain in [1, 8] {
            let (contents, cut) = cut_history(seed, grain);
            assert_eq!(cut_history(seed, grain), (contents, cut), "seed {seed}");
            total.kept += cut.kept;
            total.lost += cut.lost;
            total.torn += cut.torn;
        }
    }
    assert!(total.kept > 250 && total.lost > 250 && total.torn > 50, "{total:?}");
}

#[test]
fn concurrent_writes_of_one_sector_end_in_any_order() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let disk = disk();
        run(seed, async {
            let tasks = [1, 2].map(|byte| {
                let disk = Arc::clone(&disk);
                cenote_rt::spawn(async move { disk.write(0, sector(byte)).await })
            });
            join(tasks.into()).await.into_iter().for_each(|result| result.expect("working"));
            disk.cut_power(&mut Rng::seeded(seed));
            disk.restore_power();
            found.insert(byte(&disk, 0).await);
        });
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_lying_flush_keeps_nothing() {
    let disk = disk();
    let lost = (0..40).filter(|seed| {
        disk.lie_about_flush(true);
        run(*seed, async {
            disk.write(0, sector(*seed as u8 + 1)).await.expect("working");
            disk.flush().await.expect("says so");
            disk.cut_power(&mut Rng::seeded(*seed));
            disk.restore_power();
            byte(&disk, 0).await != *seed as u8 + 1
        })
    });
    assert!((5..35).contains(&lost.count()));
    assert_eq!(disk.stats().faults(DiskFault::LyingFlush), 40);
    assert_eq!(disk.stats().faults(DiskFault::PowerCut), 40);
}

#[test]
fn dead_stalled_and_slow_disks() {
    let disk = disk();
    run(1, async {
        let begin = |offset| {
            let disk = Arc::clone(&disk);
            cenote_rt::spawn(async move { disk.read(offset, BufMut::zeroed(4096)).await })
        };
        let timed = async || {
            let before = cenote_rt::monotonic();
            disk.read(0, BufMut::zeroed(4096)).await.expect("working");
            cenote_rt::monotonic().saturating_sub(before).as_nanos() as f64
        };
        let usual = timed().await;
        disk.slow_down(7);
        let slow = timed().await;
        assert!((6.8..7.2).contains(&(slow / usual)), "{slow} ns, usually {usual}");
        disk.slow_down(1);

        disk.stall(Some(Duration::from_millis(20)));
        let stalled = timed().await;
        assert!((20e6..20.3e6).contains(&stalled), "{stalled} ns");

        let waiting = begin(0);
        cenote_rt::yield_now().await;
        disk.stall(None);
        let also_waiting = begin(8192);
        cenote_rt::sleep(Duration::from_secs(3)).await;
        assert!(!waiting.is_finished() && !also_waiting.is_finished());
        disk.resume();
        join(vec![waiting, also_waiting]).await.into_iter().for_each(|result| {
            result.expect("working");
        });

        let in_flight = begin(0);
        cenote_rt::yield_now().await;
        disk.set_dead(true);
        let error = in_flight.await.expect("no panic").expect_err("dead");
        assert!(error.cause::<InjectedFault>().is_some());
        disk.write(0, sector(1)).await.expect_err("dead");
        disk.flush().await.expect_err("dead");
        disk.current_size().await.expect_err("dead");
        disk.set_dead(false);
        disk.flush().await.expect("working");
        assert_eq!(disk.stats().faults(DiskFault::Refused), 2);
        disk.settle().await;
    });
}

#[test]
fn the_next_commands_or_flushes_fail_and_a_reset_loses_the_cache() {
    let disk = disk();
    run(1, async {
        disk.fail_next_flushes(1);
        disk.write(0, sector(1)).await.expect("working");
        disk.flush().await.expect_err("told to fail");
        disk.flush().await.expect("working");
        disk.fail_next_commands(2);
        disk.read(0, BufMut::zeroed(512)).await.expect_err("told to fail");
        disk.write(0, sector(1)).await.expect_err("told to fail");
        assert_eq!(byte(&disk, 0).await, 1);
        let lost = async |seed| {
            disk.write(512, sector(2)).await.expect("working");
            disk.write(1024, sector(3)).await.expect("working");
            let cut = disk.reset(&mut Rng::seeded(seed));
            assert_eq!(byte(&disk, 0).await, 1);
            cut.lost
        };
        let mut all = 0;
        for seed in 0..20 {
            all += lost(seed).await;
        }
        assert!((10..30).contains(&all), "{all} of 40 writes are lost");
        let recent = disk.recent_writes();
        assert_eq!((recent.len(), recent[40].clone()), (41, 1024..1536));
    });
}

#[test]
fn a_killed_process_does_not_stop_the_commands_of_another_one() {
    let disk = disk();
    run(1, async {
        let process = cenote_rt::Process::new("killed");
        let begin = |offset| {
            let disk = Arc::clone(&disk);
            async move { disk.read(offset, BufMut::zeroed(4096)).await }
        };
        // The process that is killed has the timer.
        drop(process.spawn(begin(0)));
        cenote_rt::yield_now().await;
        let other = cenote_rt::spawn(begin(8192));
        cenote_rt::yield_now().await;
        process.kill();
        other.await.expect("no panic").expect("working");
        disk.settle().await;
    });
}

#[test]
fn faults_end_and_damaged_sectors_are_replaced() {
    let disk = disk();
    run(1, async {
        disk.write(0, vec![Buf::from(vec![7; 2048])]).await.expect("working");
        disk.damage(512..1024);
        disk.fail_next_write(WriteFault::Eio);
        disk.fail_next_commands(3);
        disk.lie_about_next_flushes(3);
        disk.slow_down(1000);
        disk.stall(None);
        disk.end_faults();
        disk.read(0, BufMut::zeroed(1024)).await.expect_err("still damaged");
        assert_eq!(disk.image().size(), SIZE);
        assert!(disk.replace_damaged() && !disk.replace_damaged());
        let before = cenote_rt::monotonic();
        let found = [byte(&disk, 0).await, byte(&disk, 1).await, byte(&disk, 2).await];
        assert!(cenote_rt::monotonic().saturating_sub(before) < Duration::from_secs(1));
        assert_eq!(found, [7, 0, 7]);
        let mut image = [1; 1024];
        disk.image().read_at(512, &mut image);
        assert_eq!((image[0], image[512]), (0, 7));
        disk.write(0, sector(8)).await.expect("no fault");
        disk.flush().await.expect("no fault");
        disk.cut_power(&mut Rng::seeded(1));
        disk.restore_power();
        assert_eq!(byte(&disk, 0).await, 8);
    });
}

#[test]
fn a_number_of_flushes_lie() {
    let disk = disk();
    run(1, async {
        disk.lie_about_next_flushes(1);
        disk.flush().await.expect("says so");
        disk.write(0, sector(1)).await.expect("working");
        disk.flush().await.expect("working");
        disk.cut_power(&mut Rng::seeded(1));
        disk.restore_power();
        assert_eq!(byte(&disk, 0).await, 1);
        assert_eq!(disk.stats().faults(DiskFault::LyingFlush), 1);
    });
}

#[test]
fn a_process_that_is_killed_at_once_leaves_its_commands_to_the_disk() {
    let disk = disk();
    run(1, async {
        let process = cenote_rt::Process::new("killed");
        let command = Arc::clone(&disk);
        let killed = process.clone();
        // The command has begun, and the task that sleeps for it has not run yet.
        let begun = process.spawn(async move {
            let mut read = std::pin::pin!(command.read(0, BufMut::zeroed(4096)));
            std::future::poll_fn(|context| {
                assert!(read.as_mut().poll(context).is_pending());
                killed.kill();
                Poll::Ready(())
            })
            .await;
        });
        drop(begun);
        cenote_rt::yield_now().await;
        disk.read(8192, BufMut::zeroed(4096)).await.expect("working");
        disk.settle().await;
    });
}

#[test]
fn unreadable_sectors_come_back_when_they_are_written() {
    let disk = disk();
    run(1, async {
        disk.write(0, vec![Buf::from(vec![7; 8192])]).await.expect("working");
        disk.damage(1024..3000);
        for (sector, is_readable) in [(1, true), (2, false), (5, false), (6, true)] {
            let read = disk.read(sector * 512 + 100, BufMut::zeroed(100)).await;
            assert_eq!(read.is_ok(), is_readable, "sector {sector}");
        }
        let error = disk.read(0, BufMut::zeroed(4096)).await.expect_err("damaged");
        assert_eq!(error.cause(), Some(&UnreadableSector { sector: 2 }));
        disk.write(1024, vec![Buf::from(vec![8; 1024])]).await.expect("working");
        assert_eq!([byte(&disk, 2).await, byte(&disk, 3).await], [8, 8]);
        disk.read(2048, BufMut::zeroed(512)).await.expect_err("damaged");
        let events = disk.take_injected();
        assert_eq!(events[0].fault, DiskFault::LatentError);
        assert_eq!(disk.stats().faults(DiskFault::UnreadableSector), 4);
    });
}

#[test]
fn writes_are_lost_torn_misdirected_or_refused() {
    let disk = disk();
    run(1, async {
        disk.fail_next_write(WriteFault::Lost);
        disk.fail_next_write(WriteFault::Misdirected(Some(1 << 20)));
        disk.fail_next_write(WriteFault::Eio);
        disk.fail_next_write(WriteFault::Torn);
        disk.write(0, sector(1)).await.expect("says so");
        disk.write(512, sector(2)).await.expect("says so");
        disk.write(1024, sector(3)).await.expect_err("refused");
        disk.write(8192, vec![Buf::from(vec![4; 8192])]).await.expect("says so");
        disk.write(2048, sector(5)).await.expect("working");
        let mut found = Vec::new();
        for at in [0, 1, 2, 4, 2048] {
            found.push(byte(&disk, at).await);
        }
        assert_eq!(found, [0, 0, 0, 5, 2]);
        let mut torn = Vec::new();
        for at in 16..32 {
            torn.push(byte(&disk, at).await);
        }
        assert!(torn.is_sorted_by(|left, right| left >= right) && torn[15] == 0, "{torn:?}");
        let faults: Vec<DiskFault> = disk.take_injected().iter().map(|event| event.fault).collect();
        let wanted = [
            DiskFault::LostWrite,
            DiskFault::MisdirectedWrite,
            DiskFault::WriteError,
            DiskFault::TornWrite,
        ];
        assert_eq!(faults, wanted);
    });
}

#[test]
fn faults_happen_at_their_rates_and_repeat_by_seed() {
    let faults = |seed| {
        let disk = disk();
        let all = 50_000;
        let rates = FaultRates {
            read_error: all,
            write_error: all,
            lost_write: all,
            torn_write: all,
            misdirected_write: all,
            flush_error: all,
            latent_error: all,
            bit_flip: all,
        };
        disk.set_fault_rates(seed, rates);
        run(1, async {
            for step in 0..2000 {
                let offset = step % 1000 * 4096;
                let _ = disk.write(offset, vec![Buf::from(vec![9; 4096])]).await;
                let _ = disk.read(offset, BufMut::zeroed(4096)).await;
                let _ = disk.flush().await;
            }
        });
        let kinds = [
            DiskFault::ReadError,
            DiskFault::WriteError,
            DiskFault::LostWrite,
            DiskFault::TornWrite,
            DiskFault::MisdirectedWrite,
            DiskFault::FlushError,
            DiskFault::LatentError,
            DiskFault::BitFlip,
            DiskFault::UnreadableSector,
        ];
        kinds.map(|kind| disk.stats().faults(kind))
    };
    let counts = faults(1);
    assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
    assert_eq!(faults(1), counts);
    assert_ne!(faults(2), counts);
}

#[test]
fn bits_flip_in_stored_data_only() {
    let disk = disk();
    run(1, async {
        let mut data = vec![0; 64 << 10];
        crate::pattern::fill(77, &mut data[..32 << 10]);
        Rng::seeded(1).fill(&mut data[32 << 10..]);
        disk.write(1 << 20, vec![Buf::from(data.clone())]).await.expect("working");
        assert_eq!(disk.flip_bits(0..1 << 20, 3, &mut Rng::seeded(1)), []);
        let mut flipped = disk.flip_bits(0..SIZE, 20, &mut Rng::seeded(1));
        let read = disk.read(1 << 20, BufMut::zeroed(64 << 10)).await.expect("silent");
        let differs = |at: &usize| read[*at] != data[*at];
        let wrong: Vec<u64> =
            (0..data.len()).filter(differs).map(|at| (1 << 20) + at as u64).collect();
        flipped.sort_unstable();
        assert_eq!(wrong, flipped);
        let (low, high) =
            flipped.split_at(flipped.partition_point(|at| *at < (1 << 20) + (32 << 10)));
        assert!(!low.is_empty() && !high.is_empty(), "in both kinds of content");
        disk.flip_bit(flipped[0], 9);
    });
}

#[test]
fn old_copies_come_back_and_disks_shrink() {
    let disk = disk();
    run(1, async {
        disk.write(0, sector(1)).await.expect("working");
        let old = disk.snapshot();
        disk.write(0, sector(2)).await.expect("working");
        disk.restore(&old);
        assert_eq!(byte(&disk, 0).await, 1);
        disk.cut_power(&mut Rng::seeded(1));
        disk.restore_power();
        assert_eq!(byte(&disk, 0).await, 1);
        disk.set_size(1 << 20);
        assert_eq!(disk.current_size().await.expect("working"), 1 << 20);
        let error = disk.write(1 << 20, sector(1)).await.expect_err("shorter");
        let wanted = OutOfRange { offset: 1 << 20, len: 512, size: 1 << 20 };
        assert_eq!(error.cause(), Some(&wanted));
        disk.set_size(u64::MAX);
        disk.write(1 << 20, sector(1)).await.expect("whole again");
        disk.write(SIZE, sector(1)).await.expect_err("beyond the end");
        disk.write(100, sector(1)).await.expect_err("not a whole sector");
    });
}

#[test]
fn a_disk_outlives_its_simulation() {
    let disk = disk();
    for seed in 0..3 {
        run(seed, async {
            // Some commands are in flight when the simulation ends.
            for at in 0..8 {
                let disk = Arc::clone(&disk);
                drop(cenote_rt::spawn(async move { disk.write(at * 512, sector(9)).await }));
            }
            cenote_rt::yield_now().await;
            disk.read(0, BufMut::zeroed(512)).await.expect("working");
        });
    }
    // The timing is that of a real clock, too.
    let read = disk.read(0, BufMut::zeroed(512));
    cenote_rt::block_on(1, read).expect("runtime").expect("working");
    cenote_rt::block_on(1, disk.settle()).expect("runtime");
}

#[test]
fn memory_of_volatile_writes_is_bounded() {
    let size = 8 << 30;
    let disk = ModelDisk::new("disk", size, Params::Flash(NVME).build(size, 1));
    run(1, async {
        for at in 0..600 {
            disk.discard(at << 20, 1 << 20).await.expect("working");
        }
        let cut = disk.cut_power(&mut Rng::seeded(1));
        assert_eq!(cut.kept + cut.lost + cut.torn, 256);
    });
}

#[test]
fn rotating_disks_refuse_discards_and_others_take_them() {
    let rotating = ModelDisk::new("disk", SIZE, Params::Rotating(HDD_7200).build(SIZE, 1));
    let flash = disk();
    run(1, async {
        let error = rotating.discard(0, 512).await.expect_err("no TRIM");
        assert_eq!(error.kind(), Kind::Unsupported);
        flash.write(0, sector(1)).await.expect("working");
        flash.flush().await.expect("working");
        flash.discard(0, 512).await.expect("working");
        assert_eq!(byte(&flash, 0).await, 0);
    });
    assert_eq!(flash.stats().of(Op::Discard), OpCount { commands: 1, bytes: 512 });
}

#[test]
fn equal_runs_have_equal_hashes() {
    let hash = |seed| {
        let log = CommandHash::new();
        let disks = [1, 2].map(|number| {
            let model = Params::Rotating(HDD_7200).build(SIZE, number);
            log.wrap(ModelDisk::new("disk", SIZE, model))
        });
        run(seed, async {
            let mut rng = Rng::seeded(seed);
            for _ in 0..200 {
                let disk = &disks[rng.below(2) as usize];
                let offset = rng.below(1000) * 512;
                disk.write(offset, sector(rng.below(256) as u8)).await.expect("working");
            }
        });
        log.value()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}
