//! POSIX files and volumes on a dataset.
