//! Random numbers that depend on nothing but a seed, a token and a vocabulary entry.

/// A number from 2^-33 to 1, uniformly distributed, for a token (its row of X) and a global id. Small numbers are as fine
/// as f32 goes: they are what the largest of many values of Gumbel noise come from.
///
/// Two rounds of an invertible mix of 32 bits, each keyed by seed and token. Every lowering computes the same integers.
pub fn uniform(seed: u64, token: u32, id: u32) -> f32 {
    let [first, second] = keys(seed, token);
    let bits = mix(mix(id ^ first) ^ second);
    (bits as f32 + 0.5) * 2.0f32.powi(-32)
}

/// The keys of a token.
pub fn keys(seed: u64, token: u32) -> [u32; 2] {
    let first = mix(mix(token.wrapping_mul(0x9e37_79b9) ^ seed as u32) ^ (seed >> 32) as u32);
    [first, mix(first.wrapping_add(0x9e37_79b9))]
}

fn mix(mut bits: u32) -> u32 {
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
    bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
    bits ^ (bits >> 16)
}
