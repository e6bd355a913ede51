use super::*;

struct Raw {
    dtype: Stored,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn f32s(shape: &[usize], values: &[f32]) -> Raw {
    Raw { dtype: Stored::F32, shape: shape.to_vec(), data: bytemuck::cast_slice(values).to_vec() }
}

fn i64s(values: &[i64]) -> Raw {
    Raw { dtype: Stored::I64, shape: vec![values.len()], data: bytemuck::cast_slice(values).to_vec() }
}

fn good() -> Vec<(&'static str, Raw)> {
    vec![
        ("x", f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("w", f32s(&[1, 3], &[0.5, 0.25, -1.0])),
        ("targets", i64s(&[0, -100])),
    ]
}

fn bytes(tensors: &[(&'static str, Raw)]) -> Vec<u8> {
    let views = tensors.iter().map(|(n, t)| (*n, TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

fn read_bytes(bytes: &[u8]) -> Result<Inputs, TensorError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    read(file.path())
}

/// The message for good tensors with one replaced or added.
fn message(name: &'static str, tensor: Raw) -> String {
    let mut tensors = good();
    tensors.retain(|(n, _)| *n != name);
    tensors.push((name, tensor));
    read_bytes(&bytes(&tensors)).unwrap_err().to_string()
}

#[test]
fn reads_all_types() {
    let mut tensors = good();
    tensors[0].1 = Raw { dtype: Stored::BF16, shape: vec![2, 3], data: [0x80, 0x3f].repeat(6) };
    tensors[2].1 = Raw { dtype: Stored::I32, shape: vec![2], data: bytemuck::cast_slice(&[0_i32, -7]).to_vec() };
    tensors.push(("bias", Raw { dtype: Stored::F16, shape: vec![1], data: vec![0x00, 0x38] }));
    tensors.push(("upstream", f32s(&[2], &[1.0, -2.0])));
    let inputs = read_bytes(&bytes(&tensors)).unwrap();
    assert_eq!(inputs.x, Elements::Bf16(vec![bf16::ONE; 6]));
    assert_eq!(inputs.targets, [0, -7]);
    assert_eq!((inputs.bias, inputs.upstream), (Some(vec![0.5]), Some(vec![1.0, -2.0])));
    assert_eq!((inputs.hidden, inputs.vocab), (3, 1));
}

#[test]
fn no_tokens_are_fine() {
    let tensors = [("x", f32s(&[0, 3], &[])), ("w", f32s(&[1, 3], &[0.0; 3])), ("targets", i64s(&[]))];
    assert_eq!(read_bytes(&bytes(&tensors)).unwrap().tokens(), 0);
}

#[test]
fn faults_name_the_tensor_and_what_was_expected() {
    let x = [0.0; 6];
    assert_eq!(message("x", f32s(&[6], &x)), "tensor x: shape [6]; expected [N, H]");
    assert_eq!(message("w", f32s(&[3, 2], &x)), "tensor w: shape [3, 2]; expected [V, 3], as x has 3 columns");
    assert_eq!(message("w", f32s(&[6], &x)), "tensor w: shape [6]; expected [V, H]");
    assert_eq!(message("targets", i64s(&[0])), "tensor targets: shape [1]; expected [2], one value per row of x");
    assert_eq!(message("targets", f32s(&[2], &x[..2])), "tensor targets: dtype F32; expected I64 or I32");
    assert_eq!(
        message("x", Raw { dtype: Stored::F64, shape: vec![2, 3], data: vec![0; 48] }),
        "tensor x: dtype F64; expected F32, BF16 or F16"
    );
    assert_eq!(message("bias", f32s(&[2], &x[..2])), "tensor bias: shape [2]; expected [1], one value per row of w");
    assert_eq!(
        message("upstream", f32s(&[1], &[1.0])),
        "tensor upstream: shape [1]; expected [2], one value per row of x"
    );
    assert_eq!(message("w", f32s(&[1, 3], &[0.0, f32::NAN, 0.0])), "tensor w: NaN at position 1; expected numbers");
    assert_eq!(
        message("wieght", f32s(&[1], &[0.0])),
        "tensor wieght: unknown; expected only x, w, targets, bias, upstream, lse_upstream, token_weights, class_weights"
    );
    let missing = read_bytes(&bytes(&good()[..2])).unwrap_err().to_string();
    assert_eq!(missing, "tensor targets: missing; expected shape [N]");
}

#[test]
fn damaged_files_are_one_line() {
    let whole = bytes(&good());
    for cut in [0, 4, 20, whole.len() - 1] {
        let message = read_bytes(&whole[..cut]).unwrap_err().to_string();
        assert!(message.contains("expected a whole safetensors file") && !message.contains('\n'), "{message}");
    }
    assert!(read_bytes(b"not a tensor file at all").is_err());
    let message = read(Path::new("no/such/file")).unwrap_err().to_string();
    assert!(message.starts_with("no/such/file: "), "{message}");
}

#[test]
fn writes_whole_files_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.safetensors");
    let values = Elements::from_f32(vec![1.0, 2.5], Dtype::F16);
    write(&path, &[Output { name: "loss", shape: vec![2], values: Written::Floats(values.clone()) }]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(floats("loss", &file.tensor("loss").unwrap()).unwrap(), values);

    assert!(read(folder.path()).unwrap_err().to_string().contains("regular file"));
    let nowhere = folder.path().join("missing/out.safetensors");
    assert!(write(&nowhere, &[]).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn conversions_round() {
    let e = Elements::from_f32(vec![1.0, 1.0 + 1.0 / 512.0], Dtype::Bf16);
    assert_eq!(e.to_f32(), [1.0, 1.0]);
    assert_eq!(e.clone().convert("x", Dtype::F32).unwrap().dtype(), Dtype::F32);
}

#[test]
fn conversions_refuse_to_make_a_number_infinite() {
    let convert = |values: &[f32], dtype| Elements::F32(values.to_vec()).convert("w", dtype);
    let odd = [f32::INFINITY, f32::NEG_INFINITY, 65519.0, -65519.0];
    assert_eq!(convert(&odd, Dtype::F16).unwrap().to_f32(), [odd[0], odd[1], 65504.0, -65504.0]);
    assert!(convert(&[f32::NAN], Dtype::F16).unwrap().to_f32()[0].is_nan());
    let message = convert(&[0.0, -65520.0], Dtype::F16).unwrap_err().to_string();
    assert_eq!(message, "tensor w: -65520.0 at position 1; expected at most 65504.0 in size, as f16 holds no more");
    assert!(convert(&[3.39e38], Dtype::Bf16).is_ok() && convert(&[f32::MAX], Dtype::Bf16).is_err());
    let wide = Elements::from_f32(vec![1e30], Dtype::Bf16);
    assert!(wide.clone().convert("w", Dtype::F16).is_err() && wide.convert("w", Dtype::F32).is_ok());
}

#[test]
fn infinities_of_x_and_w_are_read_as_they_are() {
    let mut tensors = good();
    tensors[0].1 = f32s(&[2, 3], &[f32::INFINITY; 6]);
    tensors[1].1 = f32s(&[1, 3], &[f32::NEG_INFINITY, 0.0, f32::INFINITY]);
    let inputs = read_bytes(&bytes(&tensors)).unwrap();
    assert_eq!(inputs.x, Elements::F32(vec![f32::INFINITY; 6]));
    assert_eq!(inputs.w, Elements::F32(vec![f32::NEG_INFINITY, 0.0, f32::INFINITY]));
}
