//! OpenZFS's own tools as judges for tests.
