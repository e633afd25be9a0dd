//! Counter-based random numbers: the draw at a position depends on the seed and the position alone, so any attempt of a
//! job, in any batch, after any preemption, draws the same.
//!
//! Philox4x32-10 from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const ROUND_0: u32 = 0xD251_1F53;
const ROUND_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

/// Ten rounds of Philox4x32: 128 random bits for a counter under a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let product_0 = u64::from(ROUND_0) * u64::from(counter[0]);
        let product_1 = u64::from(ROUND_1) * u64::from(counter[2]);
        counter = [
            (product_1 >> 32) as u32 ^ counter[1] ^ key[0],
            product_1 as u32,
            (product_0 >> 32) as u32 ^ counter[3] ^ key[1],
            product_0 as u32,
        ];
        key = [key[0].wrapping_add(WEYL_0), key[1].wrapping_add(WEYL_1)];
    }
    counter
}

/// The uniform number in [0, 1) for the token at `position` (0 is the first generated one) under `seed`; 53 bits.
pub fn uniform(seed: u64, position: u32) -> f64 {
    let bits = philox([position, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let mantissa = (u64::from(bits[0]) << 32 | u64::from(bits[1])) >> 11;
    mantissa as f64 / (1u64 << 53) as f64
}

/// The seed of the answer `choice` to a request with `seed`: the first has the seed itself, so that it is the same whether
/// others are drawn beside it or not.
pub fn seed_of_choice(seed: u64, choice: u32) -> u64 {
    if choice == 0 {
        return seed;
    }
    // The last word tells these counters from those of `uniform`.
    let bits = philox([choice, 0, 0, 1], [seed as u32, (seed >> 32) as u32]);
    u64::from(bits[0]) << 32 | u64::from(bits[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the Random123 distribution (kat_vectors, philox4x32-10).
    #[test]
    fn matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn answers_have_seeds_of_their_own() {
        let mut seeds: Vec<u64> = (0..1_000).flat_map(|seed| (0..8).map(move |n| seed_of_choice(seed, n))).collect();
        assert_eq!(seeds[8 * 77], 77);
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 8_000);
    }

    #[test]
    fn numbers_lie_in_the_unit_interval_and_differ_by_seed_and_position() {
        let mut sum = 0.0;
        for position in 0..50_000 {
            let number = uniform(7, position);
            assert!((0.0..1.0).contains(&number));
            sum += number;
        }
        assert!((sum / 50_000.0 - 0.5).abs() < 0.005);
        assert_ne!(uniform(7, 0), uniform(8, 0));
        assert_ne!(uniform(7, 0), uniform(7, 1));
        assert_ne!(uniform(7, 0), uniform(7 + (1 << 32), 0));
    }
}
