//! Counts instructions of a disassembled cubin: the listing of `nvdisasm -c` or `cuobjdump -sass`.

use super::CompileError;
use crate::manifest::Entry;
use crate::spec::{Dtype, KernelKind};

/// Instructions of a stretch of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub all: usize,
    /// Tensor-core products (HMMA).
    pub products: usize,
    /// Those of 16 x 8 x 16 halves among them.
    pub products_16816: usize,
    /// Matrix loads from shared memory (LDSM).
    pub matrix_loads: usize,
    /// Asynchronous copies to shared memory (LDGSTS).
    pub copies: usize,
    /// Loads and stores of spilled registers (LDL, STL).
    pub local: usize,
}

/// Counts of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The whole kernel.
    pub kernel: Counts,
    /// Its main loop: the innermost one with the most products.
    pub main_loop: Counts,
}

impl Counts {
    fn add(&mut self, opcode: &str) {
        self.all += 1;
        let part = |name: &str| opcode == name || opcode.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        self.products += usize::from(part("HMMA"));
        self.products_16816 += usize::from(opcode.starts_with("HMMA.16816"));
        self.matrix_loads += usize::from(part("LDSM"));
        self.copies += usize::from(part("LDGSTS"));
        self.local += usize::from(part("LDL") || part("STL"));
    }

    /// Instructions issued for each product.
    pub fn per_product(&self) -> f64 {
        self.all as f64 / self.products.max(1) as f64
    }
}

struct Instruction<'a> {
    opcode: &'a str,
    /// Label or address that a branch goes to.
    target: Option<&'a str>,
    /// Its own address, as hexadecimal digits.
    address: &'a str,
}

// An instruction is a line `/*0a10*/ @P0 LDG.E R2, [R4.64] ;`; a label is a line `.L_x_3:`.
fn instruction(line: &str) -> Option<Instruction<'_>> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    if address.is_empty() || !address.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let mut words = rest.split_whitespace().skip_while(|w| w.starts_with('@') || *w == "{");
    let opcode = words.next()?.trim_end_matches(';');
    if !opcode.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let target =
        (opcode.starts_with("BRA")).then(|| words.find(|w| w.contains(".L_") || w.starts_with("0x"))).flatten();
    let target = target.map(|t| t.trim_matches(|c| "`();,".contains(c)));
    Some(Instruction { opcode, target, address: address.trim_start_matches('0') })
}

/// Counts the instructions of a listing of one kernel.
pub fn count(listing: &str) -> Listing {
    let mut code: Vec<Instruction<'_>> = vec![];
    let mut labels: Vec<(&str, usize)> = vec![];
    for line in listing.lines() {
        if let Some(instruction) = instruction(line) {
            code.push(instruction);
        } else if let Some(label) = line.trim().strip_suffix(':') {
            labels.push((label, code.len()));
        }
    }
    let counts = |range: &[Instruction<'_>]| {
        let mut counts = Counts::default();
        range.iter().for_each(|i| counts.add(i.opcode));
        counts
    };
    let place = |target: &str| {
        let by_label = labels.iter().find(|(label, _)| *label == target).map(|(_, at)| *at);
        let digits = target.trim_start_matches("0x").trim_start_matches('0');
        by_label.or_else(|| code.iter().position(|i| i.address == digits))
    };
    let backwards =
        code.iter().enumerate().filter_map(|(at, i)| Some((place(i.target?)?, at)).filter(|(to, at)| to <= at));
    let loops = backwards.map(|(from, to)| counts(&code[from..=to])).filter(|c| c.products > 0);
    let main_loop = loops.max_by_key(|c| (c.products, std::cmp::Reverse(c.all))).unwrap_or_default();
    Listing { kernel: counts(&code), main_loop }
}

/// Checks that a product kernel is made of the instructions it is meant to be made of, and that no kernel spills.
///
/// # Errors
/// [`CompileError::Refused`] with what is missing.
pub fn check(entry: &Entry, architecture: &str, found: &Listing) -> Result<(), CompileError> {
    let spec = &entry.spec;
    let half = spec.types.storage != Dtype::F32;
    // Strips of f32 have no matrix load: ldmatrix transposes 16-bit elements only.
    let matrix_loads = half || spec.kernel != KernelKind::WeightGrad;
    let product = spec.kernel.has_operands(spec.target);
    let inner = &found.main_loop;
    let copies = if half { inner.copies } else { found.kernel.copies };
    let rules = [
        (found.kernel.local == 0, "no access to spilled registers"),
        (!product || inner.products > 0, "tensor-core products in its main loop"),
        (!product || !half || inner.products_16816 == inner.products, "products of 16 x 8 x 16 only"),
        (!product || !matrix_loads || inner.matrix_loads > 0, "matrix loads in its main loop"),
        (!product || copies > 0, "asynchronous copies in its main loop"),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, rule)) => Err(CompileError::Refused {
            kernel: entry.name.clone(),
            architecture: architecture.to_owned(),
            rule: format!("expected {rule}; found {found:?}"),
        }),
    }
}
