#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: proves and times the CUDA path in minutes. run.sh OUT [prove.py's options]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "run.sh: python3 is needed" >&2; exit 2; }
exec python3 -u "$here/prove.py" "$@"
