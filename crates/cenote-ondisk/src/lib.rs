//! Types and byte codecs of every structure on disk; pure, no I/O.
