//! Runs the program in the process of the test.

use cenote_cli::Io;

/// Runs a command as a shell would: standard output, standard error, status.
pub(crate) fn cenote(args: &[&str]) -> (String, String, i32) {
    let args: Vec<String> =
        std::iter::once("cenote").chain(args.iter().copied()).map(str::to_owned).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = cenote_cli::run(&args, &mut Io { out: &mut out, err: &mut err });
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(out), text(err), status)
}
