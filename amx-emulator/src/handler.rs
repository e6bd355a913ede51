//! The signal handler and its installation.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::counters::add;
use crate::decode::{Memory, Operation, Registers, Rejection, decode};
use crate::product::Element;
use crate::report::die;
use crate::state::{CONFIG_BYTES, Fault, TileUnit};
use crate::{Backend, InstallError};

thread_local! {
    // Both are initialised by constants and have no destructor: an access from the handler is an
    // address computation, without registration. It does not allocate either, unless the crate is
    // part of a library loaded with `dlopen`, where the first access of a thread may.
    static UNIT: UnsafeCell<TileUnit> = const { UnsafeCell::new(TileUnit::INITIAL) };
    /// Set while the handler holds a reference to `UNIT`.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// The disposition of `SIGILL` before ours. Set before our handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// What the first successful installation found.
static INSTALLED: Mutex<Option<Backend>> = Mutex::new(None);

pub(crate) fn install() -> Result<Backend, InstallError> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(backend) = *installed {
        return Ok(backend);
    }
    let backend = if has_native_amx() {
        Backend::Native
    } else {
        // The products are built on it; it implies AVX with its state enabled.
        if !std::arch::is_x86_feature_detected!("fma") {
            return Err(InstallError::MissingFeature("FMA"));
        }
        install_handler().map_err(InstallError::Sigaction)?;
        Backend::Emulated
    };
    *installed = Some(backend);
    Ok(backend)
}

/// Whether the processor has AMX with bfloat16 products and the kernel lets this process use it.
fn has_native_amx() -> bool {
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & BF16_AND_TILE != BF16_AND_TILE {
        return false;
    }
    // SAFETY: this request takes no pointers and only widens what the process may execute. It fails
    // where the kernel does not know it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

fn install_handler() -> io::Result<()> {
    let mut previous = empty_action();
    // SAFETY: both pointers are null or valid; a null action only queries.
    if unsafe { libc::sigaction(libc::SIGILL, std::ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A failed attempt may have stored the same value before.
    let _ = PREVIOUS.set(previous);
    let mut action = empty_action();
    let entry: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigill;
    action.sa_sigaction = entry as usize;
    // SA_NODEFER: an illegal instruction met by a handler we pass a foreign signal on to must not
    // find the signal blocked, which would kill the process.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: `action` is fully initialised, and its handler has the signature that SA_SIGINFO asks
    // for and calls async-signal-safe functions only.
    if unsafe { libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The default disposition with an empty mask.
fn empty_action() -> libc::sigaction {
    // SAFETY: `sigaction` consists of integers and an optional function pointer, for all of which
    // zero is valid.
    unsafe { std::mem::zeroed() }
}

extern "C" fn on_sigill(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` and a valid `ucontext_t`, which lie in the signal
    // frame and belong to this handler until it returns.
    let (code, gregs) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        ((*info).si_code, &mut (*context).uc_mcontext.gregs)
    };
    // Codes up to zero come from `kill` and the like: the interrupted instruction is not to blame.
    if code <= 0 {
        return pass_on(signal, info, context);
    }
    let rip = register(gregs, libc::REG_RIP);
    // SAFETY: the processor fetched the instruction at `rip`, so it is mapped, and the decoder asks
    // for the bytes of that instruction only.
    let instruction = match decode(|n| unsafe { load_byte(rip.wrapping_add(n)) }) {
        Ok(instruction) => instruction,
        Err(Rejection::Foreign) => return pass_on(signal, info, context),
        Err(Rejection::Malformed(reason)) => die(reason, rip),
    };
    let registers = Registers { general: general_registers(gregs), next_rip: rip.wrapping_add(instruction.length) };
    // A handler of another signal that runs AMX code may have interrupted this one.
    if BUSY.replace(true) {
        die("AMX code interrupted the emulation of an instruction", rip);
    }
    // SAFETY: the state belongs to this thread, and BUSY keeps a nested call away from it.
    let unit = UNIT.with(|unit| unsafe { &mut *unit.get() });
    // SAFETY: `install` found FMA; memory operands are the responsibility of the emulated program,
    // which is about to access them by this very instruction.
    let outcome = unsafe { execute(unit, instruction.operation, &registers) };
    BUSY.set(false);
    if let Err(fault) = outcome {
        die(fault.message(), rip);
    }
    if let Some(slot) = gregs.get_mut(libc::REG_RIP as usize) {
        *slot = registers.next_rip.cast_signed();
    }
}

/// # Safety
///
/// The processor must have FMA, and the memory operands must be accessible as the operation says.
unsafe fn execute(unit: &mut TileUnit, operation: Operation, registers: &Registers) -> Result<(), Fault> {
    match operation {
        Operation::LoadConfig(from) => {
            let mut image = [0; CONFIG_BYTES];
            // SAFETY: passed on to the caller.
            unsafe { read(&from, registers, 1, &mut image) };
            unit.configure(&image)?;
            add(|live| &live.ldtilecfg, 1);
        }
        Operation::StoreConfig(to) => {
            // SAFETY: passed on to the caller.
            unsafe { write(&to, registers, 1, &unit.configuration()) };
            add(|live| &live.sttilecfg, 1);
        }
        Operation::Release => {
            unit.release();
            add(|live| &live.tilerelease, 1);
        }
        Operation::Zero(tile) => {
            unit.zero(tile)?;
            add(|live| &live.tilezero, 1);
        }
        Operation::Load { tile, from, streaming } => {
            // SAFETY: passed on to the caller.
            let bytes = unit.load(tile, |n, row| unsafe { read(&from, registers, n, row) })?;
            if streaming {
                add(|live| &live.tileloaddt1, 1);
            } else {
                add(|live| &live.tileloadd, 1);
            }
            add(|live| &live.bytes_loaded, bytes);
        }
        Operation::Store { tile, to } => {
            // SAFETY: passed on to the caller.
            let bytes = unit.store(tile, |n, row| unsafe { write(&to, registers, n, row) })?;
            add(|live| &live.tilestored, 1);
            add(|live| &live.bytes_stored, bytes);
        }
        Operation::Product { element, accumulator, left, right } => {
            // SAFETY: passed on to the caller.
            let work = unsafe { unit.multiply(element, accumulator, left, right)? };
            match element {
                Element::Bf16 => add(|live| &live.tdpbf16ps, 1),
                Element::Fp16 => add(|live| &live.tdpfp16ps, 1),
            }
            add(|live| &live.multiply_adds, work);
        }
    }
    Ok(())
}

/// # Safety
///
/// The operand must be readable over the length of `bytes`.
unsafe fn read(from: &Memory, registers: &Registers, rows: u64, bytes: &mut [u8]) {
    let from = from.address(registers, rows);
    // SAFETY: the source is the caller's affair, the target is a slice.
    unsafe { copy(from, bytes.as_mut_ptr() as u64, bytes.len()) };
}

/// # Safety
///
/// The operand must be writable over the length of `bytes`.
unsafe fn write(to: &Memory, registers: &Registers, rows: u64, bytes: &[u8]) {
    let to = to.address(registers, rows);
    // SAFETY: the target is the caller's affair, the source is a slice.
    unsafe { copy(bytes.as_ptr() as u64, to, bytes.len()) };
}

/// Copies in assembly, because an address of the emulated program is not a Rust pointer: null or an
/// unmapped page has to give the ordinary `SIGSEGV`, not undefined behaviour or a debug check.
///
/// # Safety
///
/// `length` bytes must be readable at `from` and writable at `to`.
unsafe fn copy(from: u64, to: u64, length: usize) {
    // SAFETY: the caller answers for the memory; the direction flag is clear, as the ABI demands and
    // the kernel ensures on entry of a signal handler.
    unsafe {
        asm!(
            "rep movsb",
            inout("rsi") from => _,
            inout("rdi") to => _,
            inout("rcx") length => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
///
/// The byte at `address` must be readable.
unsafe fn load_byte(address: u64) -> u8 {
    let byte: u32;
    // SAFETY: the caller answers for the byte.
    unsafe {
        asm!(
            "movzx {byte:e}, byte ptr [{address}]",
            byte = lateout(reg) byte,
            address = in(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
    byte as u8
}

fn register(gregs: &[i64; 23], place: c_int) -> u64 {
    gregs.get(place as usize).map_or(0, |&value| value.cast_unsigned())
}

/// The general registers in the order in which instructions number them, which differs from that of
/// the signal frame.
fn general_registers(gregs: &[i64; 23]) -> [u64; 16] {
    [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ]
    .map(|place| register(gregs, place))
}

/// Gives a signal that is not about an AMX instruction to whoever had `SIGILL` before. A handler runs
/// under the signal mask of the interrupted code; the mask it had asked for is not applied.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let default = empty_action();
    let previous = PREVIOUS.get().unwrap_or(&default);
    // SAFETY: a valid `siginfo_t`, see `on_sigill`.
    let forced = unsafe { (*info).si_code } > 0;
    match previous.sa_sigaction {
        // The kernel, too, ignores the wish to ignore a fault.
        libc::SIG_IGN if !forced => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: an initialised action; `sigaction` and `raise` are async-signal-safe. A
            // fault recurs by itself when the instruction is executed again; a sent signal has to
            // be sent again.
            unsafe {
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                if !forced {
                    libc::raise(signal);
                }
            }
        }
        entry if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: whoever registered `entry` with SA_SIGINFO gave it this signature.
            unsafe {
                let entry: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(entry);
                entry(signal, info, context);
            }
        }
        entry => {
            // SAFETY: whoever registered `entry` without SA_SIGINFO gave it this signature.
            unsafe {
                let entry: extern "C" fn(c_int) = std::mem::transmute(entry);
                entry(signal);
            }
        }
    }
}
