#!/usr/bin/env bash
# On the GPU host, once all that ci/gpu_wheels.sh collected is there: install it into one folder, without a network.
#   ci/gpu_assemble.sh WHL PARTS SITE
# prints what to export before running Python with it.
set -euo pipefail

usage="usage: ci/gpu_assemble.sh WHL PARTS SITE"
wheels=${1:?$usage} parts=${2:?$usage} site=${3:?$usage}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp "$wheels"/*.whl "$scratch"
cat "$parts"/part.* >"$scratch/$(<"$parts/name")"
python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$scratch"/*.whl
nccl=$(cd "$site/nvidia/nccl/lib" && pwd)
cat <<END
export PYTHONPATH=$(cd "$site" && pwd)\${PYTHONPATH:+:\$PYTHONPATH}
export LD_LIBRARY_PATH=$nccl\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export LD_PRELOAD=$nccl/libnccl.so.2
END
