#!/usr/bin/env bash
# What a GPU does with this code: correctness, speed, memory, and short real trainings.
#
#   benchmarks/gpu.sh --out DIR [--tokens DIR] [--minutes 10] [--tiny]
#
# Needs Python 3.11, torch 2.11 or later with numpy, and this checkout; nothing is installed and
# nothing fetched. Ends within the minutes it is given: see docs/gpu.md. PYTHON chooses the
# interpreter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root/src:$root/benchmarks:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
# Files of the compiler are kept for this call alone, so that its times are those of a first one.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$cache/inductor" TRITON_CACHE_DIR="$cache/triton"
export PYTHONUNBUFFERED=1
"${PYTHON:-python3}" -m gpu "$@"
