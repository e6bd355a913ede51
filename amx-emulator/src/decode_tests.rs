//! Decoding of what the assembler makes of each instruction, and of encodings it refuses to make.

use std::arch::global_asm;

use super::*;

// The program is read, never executed.
global_asm!(
    ".pushsection .rodata",
    "amx_decode_program:",
    "ldtilecfg [rdi]",
    "ldtilecfg [rip + 0x1234]",
    "ldtilecfg [r12]",
    "ldtilecfg [r13]",
    "ldtilecfg [rsp + 8]",
    "ldtilecfg [r8 + r9*4 + 0x12345]",
    "sttilecfg [r15]",
    "sttilecfg [rbp - 128]",
    "tilerelease",
    "tilezero tmm0",
    "tilezero tmm7",
    "tileloadd tmm1, [rax]",
    "tileloadd tmm2, [rax + rbx]",
    "tileloadd tmm3, [r13 + r12*8]",
    "tileloadd tmm4, [r12 + r13*2 - 64]",
    "tileloadd tmm5, [rsp + rbp*2 + 4096]",
    "tileloadd tmm6, [eax + ebx*2]",
    "tileloadd tmm7, [rbx*4 + 64]",
    "tileloaddt1 tmm6, [rcx + rdx + 1024]",
    "tileloaddt1 tmm0, [rbp + r15*4]",
    "tilestored [rcx + rdx + 64], tmm3",
    "tilestored [r14 + r8*8 - 129], tmm7",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm7, tmm0, tmm1",
    "tdpfp16ps tmm1, tmm2, tmm3",
    "amx_decode_program_end:",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "amx_decode_program"]
    static PROGRAM: u8;
    #[link_name = "amx_decode_program_end"]
    static PROGRAM_END: u8;
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;
const RDI: u8 = 7;

fn at(base: u8, displacement: i32) -> Memory {
    Memory { base: Base::Register(base), index: None, scale: 0, displacement, short: false }
}

fn indexed(base: u8, index: u8, scale: u8, displacement: i32) -> Memory {
    Memory { index: Some(index), scale, ..at(base, displacement) }
}

fn t(number: u8) -> TileId {
    TileId::new(number).unwrap()
}

fn load(tile: u8, from: Memory) -> Operation {
    Operation::Load { tile: t(tile), from, streaming: false }
}

fn load_t1(tile: u8, from: Memory) -> Operation {
    Operation::Load { tile: t(tile), from, streaming: true }
}

fn product_of(element: Element, tiles: [u8; 3]) -> Operation {
    let [accumulator, left, right] = tiles.map(t);
    Operation::Product { element, accumulator, left, right }
}

fn decode_bytes(bytes: &[u8]) -> Result<Instruction, Rejection> {
    decode(|n| bytes[n as usize])
}

#[test]
fn whatever_the_assembler_emits() {
    let expected = [
        Operation::LoadConfig(at(RDI, 0)),
        Operation::LoadConfig(Memory { base: Base::Rip, ..at(0, 0x1234) }),
        Operation::LoadConfig(at(12, 0)),
        Operation::LoadConfig(at(13, 0)),
        Operation::LoadConfig(at(RSP, 8)),
        Operation::LoadConfig(indexed(8, 9, 2, 0x12345)),
        Operation::StoreConfig(at(15, 0)),
        Operation::StoreConfig(at(RBP, -128)),
        Operation::Release,
        Operation::Zero(t(0)),
        Operation::Zero(t(7)),
        load(1, at(RAX, 0)),
        load(2, indexed(RAX, RBX, 0, 0)),
        load(3, indexed(13, 12, 3, 0)),
        load(4, indexed(12, 13, 1, -64)),
        load(5, indexed(RSP, RBP, 1, 4096)),
        load(6, Memory { short: true, ..indexed(RAX, RBX, 1, 0) }),
        load(7, Memory { base: Base::None, ..indexed(0, RBX, 2, 64) }),
        load_t1(6, indexed(RCX, RDX, 0, 1024)),
        load_t1(0, indexed(RBP, 15, 2, 0)),
        Operation::Store { tile: t(3), to: indexed(RCX, RDX, 0, 64) },
        Operation::Store { tile: t(7), to: indexed(14, 8, 3, -129) },
        product_of(Element::Bf16, [0, 4, 6]),
        product_of(Element::Bf16, [7, 0, 1]),
        product_of(Element::Fp16, [1, 2, 3]),
    ];
    // SAFETY: the two symbols enclose the bytes of the program above.
    let program = unsafe {
        let (start, end) = (&raw const PROGRAM, &raw const PROGRAM_END);
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    };
    let mut rest = program;
    for operation in expected {
        // The decoder gets no byte more than the instruction has.
        let instruction = (1..=rest.len())
            .find_map(|length| {
                let mut overrun = false;
                let result = decode(|n| {
                    overrun |= n as usize >= length;
                    rest.get(n as usize).copied().unwrap_or(0)
                });
                (!overrun).then_some((length, result))
            })
            .map(|(length, result)| {
                let instruction = result.unwrap();
                assert_eq!(instruction.length as usize, length);
                instruction
            })
            .unwrap();
        assert_eq!(instruction.operation, operation);
        rest = &rest[instruction.length as usize..];
    }
    assert!(rest.is_empty());
}

#[test]
fn other_instructions_are_foreign() {
    for bytes in [
        &[0x0f, 0x0b][..],                     // ud2
        &[0x90],                               // nop
        &[0xc5, 0xf8, 0x77],                   // vzeroupper, two-byte VEX
        &[0x62, 0xf2, 0x7e, 0x48, 0x52, 0xc0], // an EVEX instruction
        &[0xf3, 0xc4, 0xe2, 0x78, 0x49, 0xc0], // a prefix that VEX excludes
        &[0x48, 0xc4, 0xe2, 0x78, 0x49, 0xc0], // REX before VEX
        &[0xc4, 0xe3, 0x78, 0x49, 0xc0],       // map 0F3A
        &[0xc4, 0xe2, 0x79, 0x18, 0x00],       // vbroadcastss
        &[0x67; 20],                           // prefixes for ever
    ] {
        assert_eq!(decode_bytes(bytes), Err(Rejection::Foreign), "{bytes:02x?}");
    }
}

#[test]
fn reserved_encodings_are_malformed() {
    for bytes in [
        &[0xc4, 0xe2, 0xf8, 0x49, 0xc0][..],         // tilerelease with VEX.W
        &[0xc4, 0xe2, 0x7c, 0x49, 0xc0],             // with VEX.L
        &[0xc4, 0xe2, 0x70, 0x49, 0xc0],             // with vvvv
        &[0xc4, 0xe2, 0x78, 0x49, 0xc1],             // with rm
        &[0xc4, 0xc2, 0x78, 0x49, 0xc0],             // with VEX.B
        &[0xc4, 0xe2, 0x78, 0x49, 0xc8],             // with reg
        &[0xc4, 0x62, 0x7b, 0x49, 0xc0],             // tilezero tmm8
        &[0xc4, 0xe2, 0x7b, 0x49, 0xc1],             // tilezero with rm
        &[0xc4, 0xe2, 0x78, 0x49, 0x08],             // ldtilecfg with reg
        &[0xc4, 0xe2, 0x7b, 0x49, 0x00],             // memory form with F2
        &[0xc4, 0xe2, 0x7b, 0x4b, 0x08],             // tileloadd without SIB
        &[0xc4, 0xe2, 0x7b, 0x4b, 0xc4],             // tileloadd from a register
        &[0xc4, 0xe2, 0x73, 0x4b, 0x04, 0x20],       // with vvvv
        &[0xc4, 0xe2, 0x78, 0x4b, 0x04, 0x20],       // without prefix
        &[0xc4, 0x62, 0x7b, 0x4b, 0x04, 0x20],       // into tmm8
        &[0x64, 0xc4, 0xe2, 0x7b, 0x4b, 0x04, 0x20], // fs:
        &[0xc4, 0xe2, 0x0a, 0x5c, 0xc4],             // tdpbf16ps with tmm14
        &[0xc4, 0xc2, 0x4a, 0x5c, 0xc4],             // with tmm12
        &[0xc4, 0x62, 0x4a, 0x5c, 0xc4],             // into tmm8
        &[0xc4, 0xe2, 0x4a, 0x5c, 0x04, 0x20],       // from memory
        &[0xc4, 0xe2, 0x48, 0x5c, 0xc4],             // without prefix
        &[0xc4, 0xe2, 0x63, 0x5e, 0xca],             // tdpbssd
        &[0xc4, 0xe2, 0x78, 0x6c, 0xca],             // tcmmrlfp16ps
    ] {
        assert!(matches!(decode_bytes(bytes), Err(Rejection::Malformed(_))), "{bytes:02x?}");
    }
}

#[test]
fn length_limit_is_that_of_the_processor() {
    let tail = [0xc4, 0xe2, 0x7b, 0x4b, 0x84, 0x20, 0, 0, 0, 0];
    let padded = |prefixes| {
        let mut bytes = vec![0x2e; prefixes];
        bytes.extend(tail);
        bytes
    };
    assert_eq!(decode_bytes(&padded(5)).map(|i| i.length), Ok(15));
    assert!(matches!(decode_bytes(&padded(6)), Err(Rejection::Malformed(_))));
}

#[test]
fn addresses_wrap_like_registers() {
    let mut registers = Registers { general: [0; 16], next_rip: 0x1000 };
    registers.general[usize::from(RAX)] = 0x10;
    registers.general[usize::from(RBX)] = u64::MAX; // a stride of -1, -8 when scaled
    let operand = indexed(RAX, RBX, 3, -0x20);
    assert_eq!(operand.address(&registers, 0), 0_u64.wrapping_sub(0x10));
    assert_eq!(operand.address(&registers, 3), 0_u64.wrapping_sub(0x28));
    let short = Memory { short: true, ..operand };
    assert_eq!(short.address(&registers, 3), 0xffff_ffd8);
    let relative = Memory { base: Base::Rip, ..at(0, -16) };
    assert_eq!(relative.address(&registers, 1), 0xff0);
}
