//! The example runs to its end; it checks what it computes itself.

#[test]
fn the_example_succeeds() {
    let status =
        std::process::Command::new(env!("CARGO_BIN_EXE_custom-kernels")).status().expect("the program is there");
    assert!(status.success(), "{status}");
}
