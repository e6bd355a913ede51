//! Last words, from within a signal handler: no allocation, no formatting machinery, no locks.

/// A line under construction. What does not fit is dropped.
struct Line {
    bytes: [u8; 256],
    used: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        let room = self.bytes.iter_mut().skip(self.used);
        for (place, &byte) in room.zip(text) {
            *place = byte;
            self.used += 1;
        }
    }

    fn push_hex(&mut self, value: u64) {
        self.push(b"0x");
        let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
        for place in (0..digits).rev() {
            let digit = (value >> (4 * place)) as u8 & 15;
            self.push(&[if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }]);
        }
    }
}

/// Says on standard error what is wrong with the instruction at `rip`, and aborts the process.
pub(crate) fn die(reason: &str, rip: u64) -> ! {
    let mut line = Line { bytes: [0; 256], used: 0 };
    line.push(b"AMX emulator: ");
    line.push(reason.as_bytes());
    line.push(b" (instruction at ");
    line.push_hex(rip);
    line.push(b")\n");
    // SAFETY: `used` counts initialised bytes of the array, and both functions are
    // async-signal-safe. There is nobody to tell of a failed write.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.used);
        libc::abort()
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    fn text(build: impl FnOnce(&mut Line)) -> String {
        let mut line = Line { bytes: [0; 256], used: 0 };
        build(&mut line);
        String::from_utf8_lossy(&line.bytes[..line.used]).into_owned()
    }

    #[test]
    fn numbers_and_overlong_text() {
        for value in [0, 9, 0xf, 0x10, 0xdead_beef, u64::MAX] {
            assert_eq!(text(|line| line.push_hex(value)), format!("{value:#x}"));
        }
        assert_eq!(text(|line| line.push(&[b'x'; 300])), "x".repeat(256));
    }
}
