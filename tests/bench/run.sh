#!/usr/bin/env bash
# Times the CPU path beside its floor and its eager PyTorch peer, in one run, and a GPU's where there is one:
# tests/bench/run.sh build/release/bin
set -euo pipefail
bin=${1:?usage: run.sh BIN_FOLDER}
here=$(dirname "$0")
echo "machine: $(lscpu | sed -n 's/^Model name: *//p'), $(nproc) cores, $(date -u +%F)"
echo
echo "eager PyTorch, five of the eleven metrics (peer_torch.py):"
"${PYTHON:-python3}" "$here/peer_torch.py"
echo
medians() {
  "$bin/$1" --benchmark_repetitions="${REPETITIONS:-7}" --benchmark_report_aggregates_only=true \
    --benchmark_counters_tabular=true --benchmark_min_time="$2" 2>/dev/null | grep -E '^Benchmark|_median|^-'
}
echo "kvreplay, all eleven (of_floor: floor / time):"
medians token_metrics_bench 1
echo
echo "evictions: the exact error of kept sets, the exact searches, the exact knapsack"
medians eviction_bench 0.5
echo
echo "decoding with an eviction at every step (a_step: seconds a step of one thread)"
medians decode_bench 0.5
echo
echo "key channels: how they interact in the logits (of_whole: as if both triangles were formed) and in the output, searches"
medians channel_bench 0.5
echo
echo "compensation: values and masses fitted for a kept fifth (floor: two Gram products and Cholesky factors in float64)"
medians compensation_bench 0.5

if [ -x "$bin/cuda_bench" ]; then
  echo
  echo "the GPU, beside its floor and PyTorch on it"
  if "$bin/cuda_bench"; then
    echo
    "${PYTHON:-python3}" "$here/peer_torch.py" --device cuda
  else
    echo "not timed"
  fi
fi

if [ -x "$bin/kvreplay_viewer_session" ]; then
  echo
  echo "the dashboard: a scripted session at 1280 x 800"
  long=$(mktemp -d)
  trap 'rm -rf "$long"' EXIT
  "$bin/kvreplay" synth "$long/prompt-4096" --layers 2 --q-heads 8 --kv-heads 2 --head-dim 128 --prompt 4096 --decode 128 --dtype float16 >/dev/null
  "$bin/kvreplay_viewer_session" "$here/../../data/samples/pystdlib-lm" "$long/prompt-4096"
fi
