#!/usr/bin/env bash
# Checks the kernels on a GPU and times them beside PyTorch, in under 6 minutes. Needs a GPU with its driver, python3, and
# for the comparison torch; no Rust and no network. docs/gpu.md says what has to be carried to the machine.
#
#   benches/gpu/check.sh                                    on the first GPU
#   benches/gpu/check.sh --sizes                            what has to be carried, and whether it fits; runs nothing
#   DEVICE=cpu SHAPES="64,64,1000" benches/gpu/check.sh     everything but CUDA, on any machine
#   DEVICE=ptx:sm_80 CHECK_SECONDS=600 benches/gpu/check.sh correctness of the GPU's kernels on the interpreter
#
# Exits with 0 if all is correct, 1 if a result is not, 2 if nothing could be checked, 3 if the device failed at work, the
# program crashed or did not answer. Settings, by environment:
#   DEVICE             cuda:N, cpu or ptx:sm_80               [cuda:0]
#   SHAPES             N,H,V of each, spaces between them
#   ROUNDS             rounds of a turn                       [3]
#   CHECK_SECONDS      time for correctness                   [75]
#   BENCH_SECONDS      time for measurements                  [200]
#   CARRY_MIB          what may be carried                    [64]
#   VOCABFUSE_BIN      the program                            [target/release/vocabfuse]
#   VOCABFUSE_NVRTC    folder of NVRTC                        [target/nvrtc]
#   VOCABFUSE_CACHE    folder of compiled kernels             [target/cubins]
set -euo pipefail
cd "$(dirname "$0")/../.."

device=${DEVICE:-cuda:0}
shapes=${SHAPES:-4096,4096,128256 8192,2304,256000 2048,4096,32000}
binary=${VOCABFUSE_BIN:-target/release/vocabfuse}
check_seconds=${CHECK_SECONDS:-75}
bench_seconds=${BENCH_SECONDS:-200}
export VOCABFUSE_NVRTC=${VOCABFUSE_NVRTC:-target/nvrtc}
export VOCABFUSE_CACHE=${VOCABFUSE_CACHE:-target/cubins}

refuse() {
    echo "nothing was checked: $1"
    exit 2
}

# Bytes of files, not of the blocks that hold them: what an archive without compression would carry.
bytes_of() {
    du --apparent-size --block-size=1 --summarize -- "$1" | cut -f 1
}

sizes() {
    local total=0 bytes part
    for part in benches/gpu "$binary" "$VOCABFUSE_CACHE"; do
        [[ -e $part ]] || refuse "$part is missing"
        bytes=$(bytes_of "$part")
        total=$((total + bytes))
        printf '%6.1f MiB  %s\n' "$(awk "BEGIN { print $bytes / 1048576 }")" "$part"
    done
    printf '%6.1f MiB  in all, of %s\n' "$(awk "BEGIN { print $total / 1048576 }")" "${CARRY_MIB:-64}"
    ((total <= ${CARRY_MIB:-64} * 1048576)) || {
        echo "too much: strip the program, and compile for one architecture, fewer forms or one chunk"
        exit 1
    }
}

[[ $device =~ ^(cpu|cuda:[0-9]+|ptx:sm_80)$ ]] || refuse "DEVICE=$device; expected cuda:N, cpu or ptx:sm_80"
case ${1:-} in
'') ;;
--sizes)
    sizes
    exit 0
    ;;
*) refuse "$1; expected --sizes or nothing" ;;
esac
command -v python3 >/dev/null || refuse "python3 is missing"
[[ -x $binary ]] || refuse "$binary is missing; carry a release build, or name one with VOCABFUSE_BIN"
if [[ $device == cuda:* ]] && command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader || true
fi
[[ $device == cpu || -d $VOCABFUSE_NVRTC ]] ||
    echo "no $VOCABFUSE_NVRTC: kernels come from $VOCABFUSE_CACHE or from an NVRTC of the system"

# Each part watches its own time; the limits here are for what does not answer at all.
checked=0
timeout -k 5 $((check_seconds + 30)) \
    python3 benches/gpu/correctness.py --binary "$binary" --device "$device" --budget "$check_seconds" || checked=$?
case $checked in
0) ;;
1) echo "correctness FAILED; times of wrong results mean little" ;;
2) refuse "see the line above" ;;
3) echo "correctness FAILED: the device failed; what comes after a fault tells little" ;;
*)
    echo "correctness FAILED: it did not end in time (exit $checked)"
    checked=3
    ;;
esac

measured=0
if [[ $device == ptx:* ]]; then
    echo "no times: the interpreter is no stopwatch"
else
    timeout -k 5 $((bench_seconds + 45)) \
        python3 benches/gpu/measure.py --binary "$binary" --device "$device" --shapes "$shapes" \
        --rounds "${ROUNDS:-3}" --budget "$bench_seconds" || measured=$?
fi
# Measurements without an end are no wrong results: competitors may be slow.
case $measured in
0 | 1 | 3) ;;
124 | 137)
    echo "measurements did not end in time"
    measured=0
    ;;
*)
    echo "measurements ended with exit $measured"
    measured=1
    ;;
esac

if [[ $checked -eq 3 || $measured -eq 3 ]]; then
    echo "FAILED: a fault of the device"
    exit 3
fi
if [[ $checked -ne 0 || $measured -ne 0 ]]; then
    echo "FAILED"
    exit 1
fi
echo "correct"
