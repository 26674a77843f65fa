#!/usr/bin/env bash
# What a GPU does with this code: correctness, speed, memory, and short real trainings.
#
#   benchmarks/gpu.sh --out DIR [--tokens DIR] [--minutes 10] [--tiny]
#
# Needs Python 3.11, torch 2.11 or later with numpy, and this checkout; nothing is fetched. Where
# pydantic, PyYAML or safetensors is missing, or filelock older than 3.30, the wheels in work/wheels are
# unpacked for this call alone (docs/gpu.md says how to get them). Ends within the minutes it is given. PYTHON names another
# interpreter, WHEELS another folder of wheels.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
wheels=${WHEELS:-$root/work/wheels}
# Files of the compiler are kept for this call alone, so that its times are those of a first one.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
needed="import pydantic, safetensors, yaml; from filelock import FileLock; FileLock.on_acquired"
if ! "$python" -c "$needed" 2> /dev/null; then
  if ! ls "$wheels"/*.whl > /dev/null 2>&1; then
    echo "gpu.sh: $python lacks pydantic, PyYAML, safetensors or filelock 3.30, and $wheels has no" \
      "wheels to take them from; docs/gpu.md says how to get them, WHEELS names another folder" >&2
    exit 2
  fi
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --target "$cache/site" "$wheels"/*.whl
fi
ours="$root/src:$root/benchmarks:$root/tests:$cache/site"
export PYTHONPATH="$ours${PYTHONPATH:+:$PYTHONPATH}"
export TORCHINDUCTOR_CACHE_DIR="$cache/inductor" TRITON_CACHE_DIR="$cache/triton"
export PYTHONUNBUFFERED=1
"$python" -m gpu "$@"
