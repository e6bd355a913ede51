//! What must not be emulated: faults of AMX code end in a message, other illegal instructions reach
//! whoever else is responsible. Each case ends its process, so it runs in a copy of this one.

use std::arch::asm;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::*;
use vocabfuse_amx_emulator::{install, thread_counters};

const CASE: &str = "AMX_EMULATOR_CASE";

/// Runs the case of this name in a process of its own.
fn run(case: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child", "--nocapture"])
        .env(CASE, case)
        .output()
        .unwrap()
}

static SEEN: AtomicU64 = AtomicU64::new(0);

/// A handler of the program itself: counts, and steps over a `ud2`.
extern "C" fn step_over(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SEEN.fetch_add(1, Relaxed);
    // SAFETY: the kernel passes the frame of the interrupted code, which stopped at a `ud2` of two
    // bytes.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
    }
}

/// The same in the older form, which cannot step; it ends the process to be seen.
extern "C" fn leave(_: i32) {
    // SAFETY: ends the process, without running anything that a signal handler must not run.
    unsafe { libc::_exit(42) }
}

fn set_handler(handler: usize, flags: i32) {
    // SAFETY: zero is valid for all fields; the handler has the signature that `flags` ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
    }
}

fn ud2() {
    // SAFETY: raises SIGILL and touches nothing.
    unsafe { asm!("ud2", options(nomem, nostack)) }
}

/// One instruction on tiles as they are configured.
macro_rules! instruction {
    ($text:literal) => {
        // SAFETY: the operands, if any, lie in the buffer.
        unsafe {
            let mut buffer = [0_u8; 1024];
            asm!($text, in("rax") buffer.as_mut_ptr(), in("rcx") 64_usize, options(nostack))
        }
    };
}

// The other tests run this one in a process of its own, with the name of a case; by itself it has nothing to do.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    // SAFETY: keeps the deaths to come from leaving core files.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
    }
    let step: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = step_over;
    match case.as_str() {
        "handler" => set_handler(step as usize, libc::SA_SIGINFO),
        "old handler" => set_handler(leave as extern "C" fn(i32) as usize, 0),
        "ignored" | "ignored but sent" => set_handler(libc::SIG_IGN, 0),
        _ => {}
    }
    install().unwrap();
    let with = |change: fn(&mut Config)| {
        let mut config = Config::full();
        change(&mut config);
        config.load();
    };
    match case.as_str() {
        "load before configuration" => instruction!("tileloadd tmm0, [rax + rcx]"),
        "store before configuration" => instruction!("tilestored [rax + rcx], tmm0"),
        "zero before configuration" => instruction!("tilezero tmm0"),
        "product before configuration" => instruction!("tdpbf16ps tmm0, tmm1, tmm2"),
        "after release" => {
            Config::full().load();
            instruction!("tilerelease");
            instruction!("tilezero tmm0");
        }
        "other thread" => {
            Config::full().load();
            let other = std::thread::spawn(|| instruction!("tilezero tmm0"));
            let _ = other.join();
        }
        "unused tile" => {
            with(|config| (config.rows[3], config.colsb[3]) = (0, 0));
            instruction!("tilezero tmm2");
            instruction!("tilezero tmm3");
        }
        "odd columns" => {
            with(|config| config.colsb[3] = 30);
            instruction!("tilezero tmm3");
            instruction!("tileloadd tmm3, [rax + rcx]");
        }
        "start row" => {
            with(|config| config.start_row = 16);
            instruction!("tileloadd tmm3, [rax + rcx]");
        }
        "same tile" => {
            Config::full().load();
            instruction!(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); // tdpbf16ps tmm0, tmm1, tmm1
        }
        "accumulator rows" => {
            with(|config| config.rows[0] = 15);
            instruction!("tdpbf16ps tmm0, tmm1, tmm2");
        }
        "right columns" => {
            with(|config| config.colsb[2] = 60);
            instruction!("tdpbf16ps tmm0, tmm1, tmm2");
        }
        "inner size" => {
            with(|config| config.rows[2] = 15);
            instruction!("tdpbf16ps tmm0, tmm1, tmm2");
        }
        "palette" => with(|config| config.palette = 2),
        "reserved start" => with(|config| config.reserved[13] = 1),
        "ninth tile" => with(|config| config.colsb[8] = 64),
        "ninth tile's rows" => with(|config| config.rows[8] = 16),
        "rows" => with(|config| config.rows[7] = 17),
        "columns" => with(|config| config.colsb[0] = 65),
        "half empty" => with(|config| config.rows[0] = 0),
        "int8" => instruction!("tdpbssd tmm0, tmm1, tmm2"),
        "segment" => instruction!("tileloadd tmm0, fs:[rax + rcx]"),
        // tilezero tmm8, if there were one.
        "tile number" => instruction!(".byte 0xc4, 0x62, 0x7b, 0x49, 0xc0"),
        "unmapped" => {
            Config::full().load();
            instruction!("tileloadd tmm0, [rcx]");
        }
        "handler" => {
            ud2();
            Config::full().load();
            ud2();
            instruction!("tilezero tmm0");
            assert_eq!(SEEN.load(Relaxed), 2);
            assert_eq!(thread_counters().tilezero, 1);
            std::process::exit(43);
        }
        "ignored but sent" | "sent" => {
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGILL) };
            if case == "ignored but sent" {
                // The emulator is still in place.
                Config::full().load();
            }
            std::process::exit(44);
        }
        _ => ud2(),
    }
    println!("survived");
}

fn skip() -> bool {
    let native = !emulated();
    if native {
        skipped(Need::AmxEmulator, "the processor has AMX and faults of its own: those of the emulator do not occur");
    }
    native
}

#[test]
fn faults_abort_with_a_message() {
    if skip() {
        return;
    }
    for (case, message) in [
        ("load before configuration", "#UD: this thread has no"),
        ("store before configuration", "#UD: this thread has no"),
        ("zero before configuration", "#UD: this thread has no"),
        ("product before configuration", "#UD: this thread has no"),
        ("after release", "#UD: this thread has no"),
        ("other thread", "#UD: this thread has no"),
        ("unused tile", "#UD: the configuration gives this tile no rows"),
        ("odd columns", "#UD: bytes per row"),
        ("start row", "#UD: start_row"),
        ("same tile", "#UD: the three tiles of a product"),
        ("accumulator rows", "#UD: the shapes"),
        ("right columns", "#UD: the shapes"),
        ("inner size", "#UD: the shapes"),
        ("palette", "#GP: palettes above 1"),
        ("reserved start", "#GP: reserved bytes"),
        ("ninth tile", "#GP: reserved bytes"),
        ("ninth tile's rows", "#GP: reserved bytes"),
        ("rows", "#GP: a tile is configured with over"),
        ("columns", "#GP: a tile is configured with over"),
        ("half empty", "#GP: only one"),
        ("int8", "AMX-INT8 is not emulated"),
        ("segment", "fs: and gs: are not emulated"),
        ("tile number", "there are only eight tile registers"),
    ] {
        let output = run(case);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{case}: {text}");
        let line = format!("AMX emulator: {message}");
        assert!(text.contains(&line), "{case}: {text}");
        assert!(text.contains("(instruction at 0x"), "{case}: {text}");
    }
}

#[test]
fn memory_faults_remain_memory_faults() {
    if skip() {
        return;
    }
    assert_eq!(run("unmapped").status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn other_illegal_instructions_are_passed_on() {
    if skip() {
        return;
    }
    for case in ["default", "ignored", "sent"] {
        let output = run(case);
        assert_eq!(output.status.signal(), Some(libc::SIGILL), "{case}: {output:?}");
    }
    for (case, code) in [("handler", 43), ("old handler", 42), ("ignored but sent", 44)] {
        let output = run(case);
        assert_eq!(output.status.code(), Some(code), "{case}: {output:?}");
    }
}
