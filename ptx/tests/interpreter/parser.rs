//! What parses, what does not, and that nothing panics.

use crate::support::{MATMUL, ROWSTATS, kernel_text};
use proptest::prelude::*;
use vocabfuse_ptx::{Arg, Launch, Memory, Module, ParseErrorKind, launch};

fn error(body: &str) -> (u32, String, ParseErrorKind) {
    match Module::parse(&kernel_text(body)) {
        Err(error) => (error.line, error.text, error.kind),
        Ok(_) => panic!("{body}: no error"),
    }
}

#[test]
fn errors_carry_the_line_and_its_text() {
    let (line, text, kind) = error("add.s32 %r1, %r2, %r3;\nwibble.s32 %r1, %r2;");
    assert_eq!(text, "wibble.s32 %r1, %r2;");
    assert_eq!(kind, ParseErrorKind::UnsupportedInstruction("wibble.s32".into()));
    let full = kernel_text("add.s32 %r1, %r2, %r3;\nwibble.s32 %r1, %r2;");
    let wanted = full.lines().position(|l| l.starts_with("wibble")).unwrap() + 1;
    assert_eq!(line as usize, wanted);
    let message = Module::parse(&full).unwrap_err().to_string();
    assert!(message.contains(&format!("line {wanted}")) && message.contains("wibble"));
}

#[test]
fn whatever_is_not_understood_is_an_error() {
    use ParseErrorKind::*;
    for (body, wanted) in [
        ("add.sat.s32 %r1, %r2, %r3;", UnsupportedModifier("sat".into())),
        ("add.s32.x %r1, %r2, %r3;", UnsupportedInstruction("add.s32.x".into())),
        ("add.s32 %r1, %r2;", OperandCount),
        ("add.s32 %r1, %r2, %r3, %r4;", OperandCount),
        ("add.s32 %r1, %r2, %q3;", UndefinedName("%q3".into())),
        ("add.s32 %r1, %r2, %r64;", UndefinedName("%r64".into())),
        ("add.s32 %p1, %r2, %r3;", WrongOperand("a register")),
        ("add.f32 %f1, %f2, 1;", WrongOperand("a number of that type")),
        ("setp.xx.s32 %p1, %r2, %r3;", UnsupportedModifier("xx".into())),
        ("bra NOWHERE;", UndefinedName("NOWHERE".into())),
        ("A:\nA:", DuplicateName("A".into())),
        (".reg .b32 %r<5>;", DuplicateName("%r".into())),
        (
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r1}, {%r1}, {%r1};",
            UnsupportedModifier("m16n8k32".into()),
        ),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [%r3];", WrongOperand("a vector of that length")),
        ("cp.async.cg.shared.global [%r1], [%in], 8;", WrongOperand("a copy size of that kind")),
        ("cp.async.wait_group %r1;", WrongOperand("a literal")),
        ("ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [%in];", UnsupportedInstruction("ld.global.v4.u64".into())),
        ("cvt.f32.s32 %f1, %r1;", UnsupportedInstruction("cvt.f32.s32".into())),
        ("mov.u32 %r1, 0x12345g;", BadNumber("0x12345g".into())),
        ("call foo;", UnsupportedInstruction("call".into())),
        (".align 3;", UnsupportedDirective(".align".into())),
        ("mov.u32 %r1, %r2", Expected("a comma or semicolon")),
        ("{", UnexpectedEnd),
        ("mov.u32 %r1, ^;", UnexpectedCharacter('^')),
        (".reg .b32 %x<1000000>;\nmov.u32 %x5, %r1; .shared .b8 big[100000000];", TooMany("bytes of variables")),
    ] {
        assert_eq!(error(body).2, wanted, "{body}");
    }
    let wide = error("add.s64 %d1, %d2, %r3;").2;
    assert!(matches!(wide, WrongWidth { found: 32, expected: 64, .. }));
}

#[test]
fn scopes_of_inline_assembly_hide_names() {
    let body = "mov.u32 %r1, 5;\n{ .reg .b32 %r1; .reg .pred p; mov.u32 %r1, 7;\n\
        setp.eq.u32 p, %r1, 7; @!p bra OUT; { .reg .b32 t; mov.u32 t, %r1; mov.u32 %r2, t; }\n\
        OUT: }\nadd.u32 %r1, %r1, %r2;\nst.global.u32 [%result], %r1;";
    let run = crate::support::run_words(body, &crate::support::one_warp(), &[0], 32).unwrap();
    assert_eq!(run.out, [12; 32]);
    // What a scope declares ends with it, and labels inside do not show outside.
    assert!(matches!(error("{ .reg .b32 t; }\nmov.u32 t, 1;").2, ParseErrorKind::UndefinedName(_)));
    assert!(matches!(error("{ INSIDE: }\nbra INSIDE;").2, ParseErrorKind::UndefinedName(_)));
}

#[test]
fn directives_of_nvrtc_are_read_or_skipped() {
    let text = ".version 8.8\n.target sm_80, debug\n.address_size 64\n\
        .file 1 \"k.cu\"\n.shared .align 16 .b8 early[100];\n.extern .shared .align 128 .b8 late[];\n\
        .visible .entry a(\n.param .u64 .ptr .global .align 16 p,\n.param .align 8 .b8 q[12],\n\
        .param .u16 r\n)\n.maxntid 64, 2, 1\n.minnctapersm 2\n.maxnreg 100\n.pragma \"nounroll\";\n{\n\
        .reg .b64 %d<2>;\n.loc 1 3 5, function_name foo, inlined_at 1 2 3\n.pragma \"nounroll\";\n\
        .shared .b32 word;\nmov.u64 %d0, early;\nmov.u64 %d1, late; /* two\nlines */\nret;\n}\n\
        .entry b()\n{\nret;\n}";
    let module = Module::parse(text).unwrap();
    assert_eq!(module.target(), "sm_80");
    assert_eq!(module.kernels().len(), 2);
    let kernel = module.kernel("a").unwrap();
    assert_eq!(kernel.max_threads(), Some(128));
    let layout: Vec<(usize, usize)> = kernel.parameters().iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(layout, [(0, 8), (8, 12), (20, 2)]);
    // A word, then the module's variable at its alignment.
    assert_eq!(kernel.static_shared(), 116);
    assert_eq!(module.kernel("b").unwrap().static_shared(), 0);
    assert_eq!(module.kernel("c").map(|k| k.name()), None);
}

/// Parses, and runs whatever still parses for a short while.
fn try_everything(text: &str) {
    let Ok(module) = Module::parse(text) else {
        return;
    };
    for kernel in module.kernels() {
        let mut memory = Memory::new();
        let buffer = memory.alloc(4096).unwrap();
        let arguments: Vec<Arg> = kernel
            .parameters()
            .iter()
            .map(|p| match p.size {
                8 => Arg::Pointer(buffer),
                size => Arg::Bytes(vec![1; size]),
            })
            .collect();
        let shape = Launch { block: [64, 1, 1], dynamic_shared: 20480, instruction_limit: 3000, ..Launch::default() };
        let _ = launch(kernel, &shape, &arguments, &mut memory);
    }
}

/// Texts of NVRTC to start from.
const SOURCES: [&str; 3] = [MATMUL, ROWSTATS, include_str!("ptx/functions.ptx")];

/// Pieces that a mutation may put into the text.
const PIECES: &[&str] = &[
    "{",
    "}",
    ";",
    ",",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "|",
    "!",
    "@",
    ":",
    "+",
    "-",
    "\"",
    "/*",
    "//",
    "%r1",
    "%rd1",
    "%f1",
    "%p1",
    "%tid.x",
    "_",
    "0",
    "-1",
    "4294967296",
    "0f7F800000",
    "99999999999999999999",
    ".b32",
    ".u64",
    ".pred",
    ".reg",
    ".shared",
    ".local",
    ".align",
    "bar.sync",
    "bra",
    "ret",
    ".v4",
    ".x4",
    "cp.async.wait_group",
    "ldmatrix",
    "shfl.sync.bfly.b32",
    "é",
    "\u{0}",
    "::",
    ".global",
    "0x",
    "0b2",
];

/// Instructions whose operands may hold any bits: `R` is a 32-bit register, `Q` a
/// 64-bit one, `F` a float and `P` a predicate.
const TEMPLATES: &[&str] = &[
    "add.s32 R, R, R;",
    "sub.s64 Q, Q, Q;",
    "mul.hi.s64 Q, Q, Q;",
    "mul.hi.u32 R, R, R;",
    "mad.lo.s32 R, R, R, R;",
    "mad.wide.s32 Q, R, R, Q;",
    "mad.wide.u32 Q, R, R, Q;",
    "mad.hi.s32 R, R, R, R;",
    "div.s32 R, R, R;",
    "div.u64 Q, Q, Q;",
    "rem.s64 Q, Q, Q;",
    "rem.u32 R, R, R;",
    "abs.s32 R, R;",
    "neg.s64 Q, Q;",
    "min.s32 R, R, R;",
    "max.u64 Q, Q, Q;",
    "bfe.u32 R, R, R, R;",
    "bfe.s32 R, R, R, R;",
    "bfe.s64 Q, Q, R, R;",
    "bfe.u64 Q, Q, R, R;",
    "bfi.b32 R, R, R, R, R;",
    "bfi.b64 Q, Q, Q, R, R;",
    "prmt.b32 R, R, R, R;",
    "popc.b64 R, Q;",
    "clz.b32 R, R;",
    "clz.b64 R, Q;",
    "brev.b32 R, R;",
    "bfind.s32 R, R;",
    "bfind.u64 R, Q;",
    "bfind.shiftamt.s64 R, Q;",
    "bfind.shiftamt.u32 R, R;",
    "shl.b32 R, R, R;",
    "shl.b64 Q, Q, R;",
    "shr.s32 R, R, R;",
    "shr.u64 Q, Q, R;",
    "shr.s64 Q, Q, R;",
    "shf.l.wrap.b32 R, R, R, R;",
    "shf.l.clamp.b32 R, R, R, R;",
    "shf.r.wrap.b32 R, R, R, R;",
    "shf.r.clamp.b32 R, R, R, R;",
    "lop3.b32 R, R, R, R, 0xE8;",
    "fma.rn.f32 F, F, F, F;",
    "fma.rm.ftz.f32 F, F, F, F;",
    "add.rz.f32 F, F, F;",
    "mul.rp.sat.f32 F, F, F;",
    "div.rn.f32 F, F, F;",
    "max.NaN.f32 F, F, F;",
    "ex2.approx.f32 F, F;",
    "lg2.approx.ftz.f32 F, F;",
    "rsqrt.approx.f32 F, F;",
    "tanh.approx.f32 F, F;",
    "cvt.rzi.s32.f32 R, F;",
    "cvt.rni.u32.f32 R, F;",
    "cvt.rzi.s64.f32 Q, F;",
    "cvt.sat.s8.s32 R, R;",
    "cvt.sat.u16.s64 R, Q;",
    "cvt.rn.f32.s64 F, Q;",
    "cvt.u32.u64 R, Q;",
    "cvt.s64.s32 Q, R;",
    "cvt.rn.bf16x2.f32 R, F, F;",
    "cvt.rz.f16x2.f32 R, F, F;",
    "cvt.rna.tf32.f32 R, F;",
    "mov.b64 {R, R}, Q;",
    "mov.b64 Q, {R, R};",
    "mov.b32 F, R;",
    "setp.lt.s32 P, R, R;",
    "setp.geu.and.f32 P|P, F, F, !P;",
    "selp.b32 R, R, R, P;",
    "@P add.u32 R, R, R;",
    "@!P mov.b32 R, F;",
    "xor.pred P, P, !P;",
    "slct.b32.f32 R, R, R, F;",
    "shfl.sync.up.b32 R|P, R, R, R, -1;",
    "shfl.sync.down.b32 R, R, R, R, -1;",
    "shfl.sync.bfly.b32 R|P, R, R, R, -1;",
    "shfl.sync.idx.b32 R, R, R, R, -1;",
    "shfl.sync.idx.b32 R, R, R, 31, R;",
    "vote.sync.uni.pred P, P, -1;",
    "match.any.sync.b32 R, R, -1;",
    "vote.sync.ballot.b32 R, P, R;",
    "redux.sync.min.s32 R, R, -1;",
    "bar.sync R;",
    "bar.sync 1, R;",
    "bar.red.popc.u32 R, 0, P;",
    "barrier.sync R, R;",
    "activemask.b32 R;",
    "bar.warp.sync R;",
    "ld.shared.u32 R, [R];",
    "st.shared.v2.u32 [R], {R, R};",
    "ld.u32 R, [Q];",
    "ld.param.u32 R, [R];",
    "atom.shared.inc.u32 R, [R], R;",
    "red.global.add.f32 [Q], F;",
    "membar.gl;",
    "cp.async.ca.shared.global [R], [Q], 16, R;",
    "cp.async.wait_all;",
    "cp.async.commit_group;",
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {R, R}, [R];",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {F, F, F, F}, {R, R}, {R}, {F, F, F, F};",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {F, F, F, F}, {R, R, R, R}, {R, R}, {F, F, F, F};",
];

/// A template with registers chosen by `choice`, eight of each kind.
fn instruction(template: &str, mut choice: u64) -> String {
    let words = template.split_inclusive(|c: char| !c.is_ascii_uppercase());
    let mut out = String::new();
    for word in words {
        let (letter, rest) = word.split_at(word.len().min(1));
        let prefix = match (letter, rest.chars().next().is_some_and(|c| c.is_ascii_uppercase())) {
            ("R", false) => "%r",
            ("Q", false) => "%d",
            ("F", false) => "%f",
            ("P", false) => "%p",
            _ => {
                out += word;
                continue;
            }
        };
        out += &format!("{prefix}{}{rest}", choice % 8);
        choice = choice.rotate_right(3);
    }
    out
}

proptest! {
    #[test]
    fn any_bits_in_registers_never_panic(
        values in prop::collection::vec(prop_oneof![any::<u32>(), 0..70u32, Just(u32::MAX)], 8),
        code in prop::collection::vec((0..TEMPLATES.len(), any::<u64>()), 1..20),
        seed in 0..4u64,
    ) {
        let mut body = String::from("cvta.shared.u64 %d7, 0;\n");
        for i in 0..8 {
            body += &format!("xor.b32 %r{i}, %tid, {};\nmov.b32 %f{i}, %r{i};\n", values[i]);
            body += &format!("setp.lt.s32 %p{i}, %r{i}, {};\n", values[7 - i]);
            if i < 7 {
                body += &format!("mov.b64 %d{i}, {{%r{i}, %r0}};\n");
            }
        }
        for (template, choice) in code {
            body += &instruction(TEMPLATES[template], choice);
            body.push('\n');
        }
        let shape = Launch { block: [48, 1, 1], seed, instruction_limit: 10_000, ..crate::support::one_warp() };
        let _ = crate::support::run_words(&body, &shape, &[1; 64], 64);
    }

    #[test]
    fn mutated_text_never_panics(
        source in 0..SOURCES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12usize, 0..PIECES.len()), 1..6),
    ) {
        let mut text = SOURCES[source].to_owned();
        for (at, cut, piece) in edits {
            // The sources are ASCII, but pieces already put in need not be.
            let mut from = at.index(text.len());
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            let mut to = (from + cut).min(text.len());
            while !text.is_char_boundary(to) {
                to += 1;
            }
            text.replace_range(from..to, PIECES[piece]);
        }
        try_everything(&text);
    }

    #[test]
    fn swapped_lines_never_panic(
        source in 0..SOURCES.len(),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8),
    ) {
        let mut lines: Vec<&str> = SOURCES[source].lines().collect();
        for (a, b) in swaps {
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
        }
        try_everything(&lines.join("\n"));
    }

    #[test]
    fn random_statements_never_panic(
        words in prop::collection::vec(0..PIECES.len(), 0..40),
    ) {
        let body: Vec<&str> = words.into_iter().map(|w| PIECES[w]).collect();
        try_everything(&kernel_text(&body.join(" ")));
        try_everything(&body.join(" "));
    }
}
