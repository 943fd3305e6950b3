//! Clock, tasks, CPU pool, seeded randomness, buffers, errors and tunables.
