//! `cenote zinject`: injects faults into devices of the daemon's pools, with the options, messages
//! and output of OpenZFS's `zinject`.
//!
//! Faults are kept in memory: they end with `-c`, and when the pool is closed. Labels are not
//! affected, as in OpenZFS. Faults of a file (`-t data`) and of blocks (`-b`) are faults of their
//! ranges on the devices. What cannot be injected is refused: faults of labels (`-L`), of other
//! objects (`-t`), ignored writes (`-I`), delays of imports and exports (`-P`, `-E`) and panics
//! (`-p`).
//!
//! Source: the manual page zinject(8).

mod object;

use std::time::Duration;

use cenote_engine::{Engine, FaultEffect, FaultSpec, Faults, Injection, IoKind};
use cenote_rt::Kind;

use crate::getopt::{self, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::zpool::{block_on, names};
use crate::{argument, out};

const USAGE: &str = "\
usage:

	cenote zinject
		List all active injection records.

	cenote zinject -c <id|all>
		Clear the particular record (if given a numeric ID), or
		all records if 'all' is specified.

	cenote zinject -d device [-e errno] [-q]
		[-T <read|write|free|flush|all>] [-f frequency] pool
		Inject a fault into a particular device. 'errno' can be
		'nxio' (the default), 'io', 'dtl', 'corrupt' (bit flip),
		'noop' (successfully do nothing) or 'io-prefail' (fail
		without doing anything).
		'frequency' is a value between 0.0001 and 100.0 that limits
		device error injection to a percentage of the IOs.

	cenote zinject -d device -A <degrade|fault> pool
		Perform a specific action on a particular device.

	cenote zinject -d device -D latency:lanes [-T <read|write>] pool
		Add an artificial delay to IO requests on a particular
		device, such that the requests take a minimum of 'latency'
		milliseconds to complete, 'lanes' of them at a time.

	cenote zinject -t data [-e errno] [-f frequency] [-amq] <file>
		Inject a fault into the data of a file: 'io' (the
		default) or 'checksum'. With '-m' its file system is
		unmounted and mounted again.

	cenote zinject -b objset:object:level:start:end [-e errno]
		[-f frequency] [-aq] pool
		Inject a fault into blocks of an object: 'io' (the default)
		or 'checksum'. The numbers are hexadecimal.

	cenote zinject -a
		Flush the block caches.
";

/// Percentages are stored in millionths.
const PPM_PER_PERCENT: f64 = 10_000.0;

/// Options of OpenZFS's `zinject` that are refused, and what they inject.
const REFUSED: [(char, &str); 8] = [
    ('L', "faults of labels"),
    ('C', "faults of DVAs"),
    ('I', "ignored writes"),
    ('P', "delays of imports and exports"),
    ('E', "delays of objects"),
    ('p', "panics"),
    ('u', "unloading of pools"),
    ('m', "remounting"),
];

/// Runs the command.
pub(crate) fn run(session: Option<&Session>, args: &[String], io: &mut Io<'_>) -> CommandResult {
    if matches!(args, [first] if first == "-h" || first == "--help") {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let Some(session) = session else {
        return Err(Exit::failed("cannot inject faults: no daemon keeps pools open"));
    };
    if !session.caller.is_trusted() {
        return Err(Exit::failed("cannot inject faults: permission denied"));
    }
    if args.is_empty() {
        return list(session, io);
    }
    let parsed = getopt::parse(args, "aA:b:C:d:D:E:f:Fg:qIc:t:T:l:mr:s:e:uL:p:P:", &[])
        .map_err(with_usage)?;
    let is_of_object = parsed.has('t');
    let refused = REFUSED.iter().filter(|(letter, _)| !(is_of_object && *letter == 'm'));
    if let Some((letter, what)) = refused.into_iter().find(|(letter, _)| parsed.has(*letter)) {
        let text = format!("cannot inject with '-{letter}': {what} are not supported by cenote");
        return Err(Exit::failed(text));
    }
    if let (Some(bookmark), None, None) = (parsed.value('b'), parsed.value('c'), parsed.value('d'))
    {
        return object::run_on_blocks(session, bookmark, &parsed, io);
    }
    if let (Some(what), None, None) = (parsed.value('t'), parsed.value('c'), parsed.value('d')) {
        return object::run(session, what, &parsed, io);
    }
    match (parsed.value('c'), parsed.value('d')) {
        (Some(id), _) => cancel(session, id, &parsed, io),
        (None, Some(device)) => of_device(session, device, &parsed, io).map_err(with_usage),
        (None, None) if parsed.has('a') && parsed.operands.is_empty() => {
            drop_caches(session);
            Ok(())
        }
        (None, None) if parsed.has('a') => {
            Err(with_usage(Exit::usage("extraneous argument for '-f'")))
        }
        (None, None) => Err(with_usage(Exit::usage(
            "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified",
        ))),
    }
}

/// Empties the block caches of all pools.
fn drop_caches(session: &Session) {
    for engine in session.host.pools() {
        engine.store().set_cache_capacity(0);
        engine.retune();
    }
}

fn with_usage(exit: Exit) -> Exit {
    match exit {
        Exit::Usage(message) => Exit::Usage(format!("{message}\n{}", USAGE.trim_end())),
        Exit::FailedWith(message, status) => {
            Exit::FailedWith(format!("{message}\n{}", USAGE.trim_end()), status)
        }
        other => other,
    }
}

/// A wrong value: OpenZFS prints its usage text and ends with status 1.
fn wrong(message: String) -> Exit {
    Exit::FailedWith(message, 1)
}

/// Returns the word for an effect (`-e`).
fn error_name(effect: FaultEffect) -> &'static str {
    match effect {
        FaultEffect::Fail => "io",
        FaultEffect::Vanish => "nxio",
        FaultEffect::FailBefore => "io-prefail",
        FaultEffect::Ignore => "noop",
        FaultEffect::Corrupt => "corrupt",
        FaultEffect::KeepDtl => "dtl",
        FaultEffect::Delay { .. } => "delay",
    }
}

/// Returns the word for a type of I/O (`-T`).
fn kind_name(kind: Option<IoKind>) -> &'static str {
    match kind {
        None => "all",
        Some(IoKind::Read) => "read",
        Some(IoKind::Write) => "write",
        Some(IoKind::Flush) => "flush",
        Some(IoKind::Discard) => "free",
    }
}

fn list(session: &Session, io: &mut Io<'_>) -> CommandResult {
    let (mut faults, mut delays): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    for engine in session.host.pools() {
        for injection in Faults::of(engine.tree()).injections() {
            let is_delay = matches!(injection.spec.effect, FaultEffect::Delay { .. });
            let list = if is_delay { &mut delays } else { &mut faults };
            list.push((engine.name(), injection));
        }
    }
    if faults.is_empty() && delays.is_empty() {
        out!(io, "No handlers registered.")?;
        return out!(io, "Run 'zinject -h' for usage information.");
    }
    faults.sort_by_key(|(_, injection)| injection.id);
    delays.sort_by_key(|(_, injection)| injection.id);
    if !faults.is_empty() {
        out!(io, "{}", row("ID", ["POOL", "GUID", "TYPE", "ERROR", "FREQ"]).trim_end())?;
        let rules = ["-".repeat(15), "-".repeat(16), "-".repeat(5), "-".repeat(10), "-".repeat(9)];
        out!(io, "---  {}", rules.join("  "))?;
        for (pool, Injection { id, leaf, spec, .. }) in &faults {
            let frequency = match spec.frequency_ppm {
                0 => 100.0,
                ppm => f64::from(ppm) / PPM_PER_PERCENT,
            };
            let (kind, error) = (kind_name(spec.kind), error_name(spec.effect));
            let start = format!("{id:>3}  {pool:15}  {leaf:x}  {kind:5}  {error:10}");
            out!(io, "{start}  {frequency:8.4}%")?;
        }
        out!(io)?;
    }
    if !delays.is_empty() {
        let head = format!("{:>3}  {:15}  {:15}  {:15}", "ID", "POOL", "DELAY (ms)", "LANES");
        out!(io, "{head}  GUID")?;
        let rule = "-".repeat(15);
        out!(io, "---  {rule}  {rule}  {rule}  ----------------")?;
        for (pool, Injection { id, leaf, spec, .. }) in &delays {
            let FaultEffect::Delay { latency, lanes } = spec.effect else { continue };
            let ms = latency.as_millis();
            out!(io, "{id:>3}  {pool:15}  {ms:<15}  {lanes:<15}  {leaf:x}")?;
        }
        out!(io)?;
    }
    Ok(())
}

fn row(id: &str, [pool, guid, kind, error, frequency]: [&str; 5]) -> String {
    format!("{id:>3}  {pool:15}  {guid:16}  {kind:5}  {error:10}  {frequency:9}")
}

fn cancel(session: &Session, id: &str, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if parsed.options.len() > 1 {
        let text = "cancel (-c) incompatible with any other options";
        return Err(with_usage(Exit::usage(text)));
    }
    if !parsed.operands.is_empty() {
        return Err(with_usage(Exit::usage("extraneous argument to '-c'")));
    }
    let pools = session.host.pools();
    if id == "all" {
        for engine in &pools {
            for injection in Faults::of(engine.tree()).injections() {
                Faults::of(engine.tree()).cancel(injection.id);
            }
        }
        return out!(io, "removed all registered handlers");
    }
    let number: u64 = id.parse().map_err(|_| {
        with_usage(wrong(format!("invalid handle id '{id}': must be an integer or 'all'")))
    })?;
    if pools.iter().any(|engine| Faults::of(engine.tree()).cancel(number)) {
        return out!(io, "removed handler {number}");
    }
    Err(Exit::failed(format!("failed to remove handler {number}: No such file or directory")))
}

/// Parses `latency:lanes`, the latency in milliseconds.
fn delay(text: &str) -> Option<FaultEffect> {
    let (latency, lanes) = text.split_once(':')?;
    let latency = latency.parse().ok().filter(|ms: &u64| *ms > 0)?;
    let lanes = lanes.parse().ok().filter(|lanes: &u16| *lanes > 0)?;
    Some(FaultEffect::Delay { latency: Duration::from_millis(latency), lanes })
}

/// Parses a frequency in percent; returns millionths.
fn frequency(text: &str) -> Result<u32, Exit> {
    let range = "frequency value must be in the range [0.0001, 100.0]";
    let percent: f64 = text.parse().map_err(|_| Exit::failed(format!("invalid value: {range}")))?;
    if !(0.0001..=100.0).contains(&percent) {
        return Err(Exit::failed(format!("out of range: {range}")));
    }
    Ok((percent * PPM_PER_PERCENT).round() as u32)
}

/// Parses the fault of a device from the options.
fn spec(parsed: &Parsed) -> Result<FaultSpec, Exit> {
    let kind = match parsed.value('T').map(str::to_ascii_lowercase).as_deref() {
        None | Some("all") => None,
        Some("read") => Some(IoKind::Read),
        Some("write") => Some(IoKind::Write),
        Some("flush") => Some(IoKind::Flush),
        Some("free" | "trim") => Some(IoKind::Discard),
        Some(word @ ("claim" | "null" | "probe")) => {
            let text = format!("cannot inject into I/O of type '{word}': devices get none here");
            return Err(Exit::failed(text));
        }
        Some(other) => {
            return Err(wrong(format!(
                "invalid I/O type '{other}': must be 'read', 'write', 'free', 'claim', 'flush' or \
                 'all'"
            )));
        }
    };
    let frequency_ppm = parsed.value('f').map_or(Ok(0), frequency)?;
    if let Some(text) = parsed.value('D') {
        let effect =
            delay(text).ok_or_else(|| wrong(format!("invalid i/o delay value: '{text}'")))?;
        if !matches!(kind, None | Some(IoKind::Read | IoKind::Write)) {
            return Err(wrong("I/O type for a delay must be 'read' or 'write'".to_owned()));
        }
        return Ok(FaultSpec { kind, effect, frequency_ppm });
    }
    let effect = match parsed.value('e').map(str::to_ascii_lowercase).as_deref() {
        Some("io") => FaultEffect::Fail,
        None | Some("nxio") => FaultEffect::Vanish,
        Some("dtl") => FaultEffect::KeepDtl,
        Some("corrupt") => FaultEffect::Corrupt,
        Some("noop") => FaultEffect::Ignore,
        Some("io-prefail") => FaultEffect::FailBefore,
        Some("checksum" | "decompress" | "decrypt") => {
            return Err(Exit::failed("device error type must be 'io', 'nxio' or 'corrupt'"));
        }
        Some(other) => {
            return Err(wrong(format!(
                "invalid error type '{other}': must be one of: io decompress decrypt nxio dtl \
                 corrupt noop"
            )));
        }
    };
    if effect == FaultEffect::Corrupt && (frequency_ppm == 0 || kind != Some(IoKind::Read)) {
        let text = "device corrupt errors require io type read and a frequency value";
        return Err(Exit::failed(text));
    }
    Ok(FaultSpec { kind, effect, frequency_ppm })
}

fn of_device(session: &Session, device: &str, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if ['l', 'r', 'g', 's', 't'].iter().any(|letter| parsed.has(*letter)) {
        let text = "device (-d) incompatible with data error injection";
        return Err(Exit::usage(text));
    }
    let action = match parsed.value('A').map(str::to_ascii_lowercase).as_deref() {
        None => None,
        Some("degrade") => Some(false),
        Some("fault") => Some(true),
        Some(other) => {
            let text = format!("invalid action '{other}': must be 'degrade' or 'fault'");
            return Err(wrong(text));
        }
    };
    let [pool] = &parsed.operands[..] else {
        return Err(Exit::usage("device (-d) injection requires a single pool name"));
    };
    let spec = spec(parsed)?;
    let engine = session.pool(pool)?;
    let guid = leaf_of(&engine, device, session)?;
    if let Some(is_fault) = action {
        return block_on(async {
            match engine.leaves().set_failing(guid, is_fault).await {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == Kind::NotFound => Err(absent(device, pool)),
                Err(error) => Err(error.into()),
            }
        });
    }
    let id = Faults::of(engine.tree()).inject(guid, spec).ok_or_else(|| absent(device, pool))?;
    if parsed.has('q') {
        return out!(io, "{id}");
    }
    out!(io, "Added handler {id} with the following properties:")?;
    out!(io, "  pool: {pool}")?;
    out!(io, "  vdev: {guid:x}")
}

fn absent(device: &str, pool: &str) -> Exit {
    Exit::failed(format!("cannot find device '{device}' in pool '{pool}'"))
}

/// Returns the guid of a device with data.
fn leaf_of(engine: &Engine, device: &str, session: &Session) -> Result<u64, Exit> {
    let root = engine.admin().vdev_config();
    let file = session.caller.folder().join(argument::path(device));
    let hexadecimal = device.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let found = match hexadecimal {
        Some(guid) => root.find(guid),
        None => names::find(&root, device, &file).ok(),
    };
    let missing = || absent(device, &engine.name());
    let found = found.ok_or_else(missing)?;
    // An interior vdev gets no I/O of its own.
    let is_leaf = engine.tree().leaf_of(found.guid).is_some();
    is_leaf.then_some(found.guid).ok_or_else(|| {
        let text = format!("cannot inject into '{device}': only devices have faults");
        Exit::failed(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<FaultSpec, Exit> {
        let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        spec(&getopt::parse(&args, "e:T:f:D:", &[]).expect("options"))
    }

    #[test]
    fn options_become_faults() {
        let latency = Duration::from_millis(25);
        for (line, kind, effect, frequency_ppm) in [
            ("", None, FaultEffect::Vanish, 0),
            ("-e io", None, FaultEffect::Fail, 0),
            ("-e IO -T read -f 100", Some(IoKind::Read), FaultEffect::Fail, 1_000_000),
            ("-e corrupt -T read -f 0.5", Some(IoKind::Read), FaultEffect::Corrupt, 5_000),
            ("-e dtl", None, FaultEffect::KeepDtl, 0),
            ("-D 25:2 -T write", Some(IoKind::Write), FaultEffect::Delay { latency, lanes: 2 }, 0),
        ] {
            assert_eq!(parse(line), Ok(FaultSpec { kind, effect, frequency_ppm }), "{line}");
        }
        for (line, want) in [
            ("-e x", "invalid error type 'x': must be one of: io decompress"),
            ("-e checksum", "device error type must be 'io', 'nxio' or 'corrupt'"),
            ("-e corrupt -T read", "device corrupt errors require io type read"),
            ("-e io -f 0", "out of range: frequency value must be in the range"),
            ("-e io -f x", "invalid value: frequency value must be in the range"),
            ("-T x", "invalid I/O type 'x': must be 'read', 'write'"),
            ("-T claim", "cannot inject into I/O of type 'claim'"),
            ("-D 0:1", "invalid i/o delay value: '0:1'"),
            ("-D 10", "invalid i/o delay value: '10'"),
            ("-D 10:100000", "invalid i/o delay value: '10:100000'"),
            ("-D 10:1 -T flush", "I/O type for a delay must be 'read' or 'write'"),
        ] {
            let message = parse(line).expect_err(line).message();
            assert!(message.starts_with(want), "{line}: {message}");
        }
    }
}
