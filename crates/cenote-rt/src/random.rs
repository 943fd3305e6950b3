//! Random numbers: a seeded generator for policy, and the operating system for secrets.

/// A small seeded generator (xoshiro256**, seeded by splitmix64) for policy, tests, simulation.
#[derive(Debug, Clone)]
pub struct Rng([u64; 4]);

impl Rng {
    /// Returns the generator of `seed`; equal seeds give equal sequences.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.0;
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Fills `bytes` with unpredictable bytes from the operating system; in a simulation, from its
/// seed.
///
/// # Errors
/// The operating system has no random bytes.
pub fn secret_bytes(bytes: &mut [u8]) -> crate::Result<()> {
    if crate::simulation::fill(bytes) {
        return Ok(());
    }
    getrandom::fill(bytes).map_err(|error| crate::Error::new(crate::Kind::Io, error.to_string()))
}
