//! Which bytes of a memory were ever written.

/// One bit per byte.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    words: Vec<u64>,
}

impl Written {
    /// A record of `bytes` unwritten bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Written { words: vec![0; bytes.div_ceil(64)] }
    }

    /// Marks a range of any length.
    pub(crate) fn mark(&mut self, offset: usize, bytes: usize) {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let next = ((at / 64 + 1) * 64).min(end);
            self.words[at / 64] |= bits(at, next - at);
            at = next;
        }
    }

    /// Whether every byte of a range inside one aligned group of 64 was written.
    #[inline]
    pub(crate) fn all(&self, offset: usize, bytes: usize) -> bool {
        let wanted = bits(offset, bytes);
        self.words.get(offset / 64).is_some_and(|word| word & wanted == wanted)
    }
}

#[inline]
fn bits(offset: usize, bytes: usize) -> u64 {
    let run = match bytes {
        64.. => u64::MAX,
        n => (1 << n) - 1,
    };
    run << (offset % 64)
}
