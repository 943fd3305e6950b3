//! What `./x` does beyond cargo.

fn main() {}
