#!/usr/bin/env bash
# Packs what proves and times the CUDA path on another machine into one archive; no GPU is needed here.
#   tests/device/pack.sh [ARCHIVE]        CUDAARCHS=90-real unless it is set; there: tar xf ARCHIVE && kvreplay-device/run.sh OUT
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=${1:-build/device/kvreplay-device.tar.xz}
export CUDAARCHS=${CUDAARCHS:-90-real}
cmake -G Ninja -S . -B build/device -DCMAKE_BUILD_TYPE=Release -DKVREPLAY_CUDA=ON -DKVREPLAY_TESTS=ON -DKVREPLAY_BENCH=ON \
  -DKVREPLAY_VIEWER=OFF -DKVREPLAY_MPI=OFF -DKVREPLAY_PYTHON=OFF \
  -DCMAKE_BUILD_RPATH='$ORIGIN/../lib' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >/dev/null  # libraries of libraries, too
programs=(kvreplay cuda_bench kvreplay_cuda_tests kvreplay_analysis_cuda_tests)
cmake --build build/device --target "${programs[@]}"

packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
to=$packed/kvreplay-device
mkdir -p "$to"/{bin,lib,bench,peers}
for program in "${programs[@]}"; do strip -o "$to/bin/$program" "build/device/bin/$program"; done
# All shared libraries but the C library's own, which every machine has.
for program in "$to"/bin/*; do ldd "$program"; done | awk '$3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | while read -r library; do cp -L "$library" "$to/lib/"; done
cp tests/device/{run.sh,prove.py,proof.py,agreement.py,assertions.json} "$to/"
cp tests/bench/peer_torch*.py "$to/bench/"
cp tests/peers/obcache.py "$to/peers/"
cp -r data/samples/pystdlib-lm "$to/sample"
printf '{"commit": "%s", "architectures": "%s", "nvcc": "%s"}\n' "$(git describe --always --dirty)" "$CUDAARCHS" \
  "$(grep -oP 'CMAKE_CUDA_COMPILER_VERSION "\K[^"]+' build/device/CMakeFiles/*/CMakeCUDACompiler.cmake | head -n 1)" >"$to/about.json"
tar -C "$packed" -c kvreplay-device | xz -T0 -9 >"$archive"
echo "$archive: $(du -k "$archive" | cut -f 1) KiB"
