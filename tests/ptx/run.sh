#!/usr/bin/env bash
# Runs the device tests with every kernel as nvcc compiles it for sm_90 (ptx_to_cpp.py), on the processor, against the float64 reference;
# then with one lane of a warp at fault, which some test must notice.
#
#   tests/ptx/run.sh [BUILD]    a build folder with tests and CUDA (./bootstrap.sh test --cuda): build/release
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
grep -qs '^CMAKE_CUDA_COMPILER:[A-Z]*=/' "$build/CMakeCache.txt" || { echo "skipped: $build is without nvcc"; exit 0; }
cmake --build "$build" --target kvreplay_ptx_tests
export KVREPLAY_PTX_TESTS=$build/bin/kvreplay_ptx_tests out
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT

test_case() {
  export KVREPLAY_PTX_RAN=$out/$BASHPID
  local start=$SECONDS
  "$KVREPLAY_PTX_TESTS" "$(sed 's/[\\,[*]/\\&/g' <<<"$1")" >"$KVREPLAY_PTX_RAN.log" || { cat "$KVREPLAY_PTX_RAN.log"; exit 1; }
  echo "$((SECONDS - start)) s: $1, $(grep -o '[0-9]* assertions\?' "$KVREPLAY_PTX_RAN.log")"
}
export -f test_case
# Catch2 2 ends with as many as it lists.
{ "$KVREPLAY_PTX_TESTS" --list-test-names-only '[cuda]' || true; } | tr '\n' '\0' |
  xargs -0 -P "$(nproc)" -I{} bash -c 'test_case "$1"' - {}

ran=$(sort -u "$out"/*[0-9])
idle=$(sed -n 's/^idle //p' <<<"$ran" | grep -vxFf <(sed -n 's/^ran //p' <<<"$ran") || true)
[ -z "$idle" ] || { echo "Kernels that no test ran:"; c++filt <<<"$idle"; exit 1; }
echo "$(grep -c '^ran' <<<"$ran") kernels ran"

for fault in shfl ldmatrix ldmatrix.trans mma.f16 mma.tf32 cp.async; do
  if KVREPLAY_PTX_FAULT=$fault "$KVREPLAY_PTX_TESTS" 'a block merges*,a device knows where a cache*,keys and queries at*' >/dev/null; then
    echo "expected tests to fail with a wrong lane in $fault, found that they pass"
    exit 1
  fi
  echo "$fault: a wrong lane fails"
done
