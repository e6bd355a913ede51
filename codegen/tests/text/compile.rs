//! Reading the compiler's log and listings; what needs no compiler.

use vocabfuse_codegen::compile::capability::Capability;
use vocabfuse_codegen::compile::log::{Figures, check, figures, read, serialized};
use vocabfuse_codegen::compile::occupancy::{Architecture, occupancy};
use vocabfuse_codegen::compile::{CompileError, Form, sass};
use vocabfuse_codegen::emit::cuda_entry;
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Target, cross_entropy};

const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    16 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 8192 bytes smem, 460 bytes cmem[0]
";

fn entry() -> Entry {
    let spec = KernelSpec::new(KernelKind::WeightGrad, Target::Sm80, Dtype::Bf16, 8192, "cross_entropy").unwrap();
    cuda_entry(&spec, &cross_entropy().unwrap()).unwrap()
}

fn sm80() -> Architecture {
    Architecture::parse("sm_80").unwrap()
}

#[test]
fn the_log_is_read() {
    let expected = Figures { registers: 40, spill_stores: 12, spill_loads: 24, stack: 16, static_shared: 8192 };
    assert_eq!(figures(LOG), Some(expected));
    assert_eq!(figures("nothing of the kind"), None);
    assert_eq!(figures("ptxas info    : Used 24 registers, 460 bytes cmem[0]").map(|f| f.static_shared), Some(0));
}

#[test]
fn spills_warnings_and_too_few_warps_are_refused() {
    let rule = |log: &str| match check(&entry(), sm80(), log).unwrap_err() {
        CompileError::Refused { rule, .. } => rule,
        other => panic!("{other}"),
    };
    assert!(rule(LOG).contains("12 bytes of spill stores and 24 of spill loads"));
    let clean = LOG.replace("12 bytes spill stores, 24 bytes", "0 bytes spill stores, 0 bytes");
    let resources = check(&entry(), sm80(), &clean).unwrap();
    assert_eq!((resources.registers, resources.blocks, resources.warps), (40, 1, 8));
    let warned =
        format!("{clean}ptxas info    : (C7511) Potential Performance Loss: wgmma serialized in function 'k'\n");
    assert!(serialized(&warned).is_some() && serialized(&clean).is_none());
    assert!(rule(&warned).contains("C7511"));
    let large = clean.replace("8192 bytes smem", "100000 bytes smem");
    assert!(rule(&large).contains("0 warps"));
    assert!(rule("").contains("no resource report"));
    // Where a kernel is compiled on a user's machine, what can be launched runs.
    let spilled = read(&entry(), sm80(), LOG).unwrap();
    assert_eq!((spilled.resources.spills, spilled.faults), (36, vec![rule(LOG)]));
    assert_eq!(read(&entry(), sm80(), &clean).unwrap().faults, [""; 0]);
    assert!(read(&entry(), sm80(), &large).is_err() && read(&entry(), sm80(), "").is_err());
}

#[test]
fn occupancy_is_that_of_the_scarcest_resource() {
    assert_eq!(occupancy(sm80(), 256, 32, 0), (8, 64), "threads");
    assert_eq!(occupancy(sm80(), 256, 64, 0), (4, 32), "registers");
    assert_eq!(occupancy(sm80(), 256, 255, 0), (1, 8));
    assert_eq!(occupancy(sm80(), 128, 128, 65536), (2, 8), "shared memory");
    assert_eq!(occupancy(sm80(), 32, 16, 0), (32, 32), "blocks");
    assert_eq!(occupancy(Architecture::parse("sm_86").unwrap(), 256, 228, 98304), (1, 8), "four stages fit everywhere");
    assert_eq!(occupancy(sm80(), 256, 32, 200_000), (0, 0));
    assert_eq!(Architecture::parse("sm_42"), None);
    let list = |names: &str| Architecture::list(names).map(|list| list.iter().map(|a| a.name()).collect::<Vec<_>>());
    assert_eq!(list("sm_90a, sm_121"), Ok(vec!["sm_90a".to_owned(), "sm_121".to_owned()]));
    let error = list("sm_80,sm_42").unwrap_err().to_string();
    assert!(error.contains("sm_42") && error.contains("sm_100, sm_103, sm_120"), "{error}");
}

#[test]
fn a_block_of_every_product_fits_on_every_architecture() {
    for on in Architecture::ALL {
        assert_eq!(on.shared_a_block + 1024, on.shared, "{on:?}");
        assert!(occupancy(*on, 256, 255, entry().dynamic_shared).1 >= 8, "{on:?}");
    }
}

#[test]
fn a_device_runs_code_of_its_own_architecture_then_of_its_major_version_then_ptx() {
    let spelled = |capability: Capability| -> Vec<String> {
        let spell = |(form, on): (Form, Architecture)| format!("{form:?} {}", on.name());
        capability.codes().into_iter().map(spell).collect()
    };
    let on = |major, minor| spelled(Capability::of(major, minor));
    assert_eq!(on(7, 5), [""; 0]);
    assert_eq!(on(8, 0), ["Cubin sm_80", "Ptx sm_80"]);
    assert_eq!(on(8, 6), ["Cubin sm_86", "Cubin sm_80", "Ptx sm_86", "Ptx sm_80"]);
    // Integrated GPUs and those on boards do not run each other's machine code.
    assert_eq!(on(8, 7), ["Cubin sm_87", "Ptx sm_87", "Ptx sm_86", "Ptx sm_80"]);
    assert_eq!(on(8, 9)[..4], ["Cubin sm_89", "Cubin sm_86", "Cubin sm_80", "Ptx sm_89"]);
    assert_eq!(on(9, 0)[..2], ["Cubin sm_90", "Ptx sm_90"]);
    assert_eq!(on(10, 3)[..3], ["Cubin sm_103", "Cubin sm_100", "Ptx sm_103"]);
    assert_eq!(on(11, 0)[..2], ["Ptx sm_103", "Ptx sm_100"]);
    assert_eq!(on(12, 1)[..3], ["Cubin sm_121", "Cubin sm_120", "Ptx sm_121"]);
    assert_eq!(on(13, 0)[0], "Ptx sm_121");
    assert_eq!(spelled(Capability { number: 80, cubins: false }), ["Ptx sm_80"]);
}

const LISTING: &str = "
.text.k:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDSM.16.M88.4 R4, [R2+UR4] ;
        /*0020*/              @!PT LDS RZ, [RZ] ;
        /*0030*/                   LDGSTS.E.BYPASS.LTC128B.128 [R219], [R200.64], P0 ;
        /*0040*/                   HMMA.16816.F32.BF16 R4, R132, R136.reuse, R4 ;
        /*0050*/                   HMMA.16816.F32.BF16 R8, R132, R136, R8 ;
        /*0060*/              @!P0 BRA `(.L_x_0) ;
        /*0070*/                   STL [R1+0x8], R13 ;
        /*0080*/               @P1 BRA `(.L_x_1) ;
.L_x_1:
        /*0090*/                   EXIT ;
";

#[test]
fn instructions_of_the_main_loop_are_counted() {
    let found = sass::count(LISTING);
    assert_eq!((found.kernel.all, found.kernel.products, found.kernel.local), (10, 2, 1));
    let inner = found.main_loop;
    assert_eq!((inner.all, inner.products, inner.products_16816, inner.matrix_loads, inner.copies), (6, 2, 2, 1, 1));
    assert!((inner.per_product() - 3.0).abs() < 1e-12);
    // The tool that prints addresses instead of labels.
    assert_eq!(sass::count(&LISTING.replace("`(.L_x_0)", "0x10")).main_loop, inner);
    let refused = |listing: &str| sass::check(&entry(), "sm_80", &sass::count(listing)).unwrap_err().to_string();
    assert!(refused(LISTING).contains("no access to spilled registers"));
    let clean = LISTING.replace("STL", "ST");
    assert!(sass::check(&entry(), "sm_80", &sass::count(&clean)).is_ok());
    assert!(refused(&clean.replace("LDGSTS", "LDG")).contains("asynchronous copies"));
    assert!(refused(&clean.replace("LDSM", "LDS")).contains("matrix loads"));
    assert!(refused(&clean.replace("HMMA.16816", "HMMA.1688")).contains("16 x 8 x 16"));
}
