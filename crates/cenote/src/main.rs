//! The `cenote` program: a thin `main` over `cenote_cli`.

fn main() {}
