#!/usr/bin/env bash
# On a host with a package index: collect what gpu_conformance and gpu_bench need on a GPU host that has none.
#   ci/gpu_wheels.sh OUT      wheels for Python 3.12 on x86-64 go to OUT/whl, NCCL's large one in parts to OUT/parts
# The GPU host must have torch (CUDA 13), numpy, pytest, hypothesis, typer, rich, jinja2 and matplotlib already.
set -euo pipefail

out=${1:?usage: ci/gpu_wheels.sh OUT}
part_bytes=50000000 # many hosts take files in small batches only
small=(
  nccl4py==0.6.0 nccl-extensions==0.1.0
  nox==2026.10.20 argcomplete==3.7.2 colorlog==6.12.0 dependency-groups==1.3.2
  virtualenv==21.15.11 distlib==0.4.4 platformdirs==4.14.8 python-discovery==1.9.6
)
large=nvidia-nccl-cu13==2.30.7 # lets ranks share a GPU; the one that torch brings does not

target=(--python-version 3.12 --implementation cp --only-binary=:all:)
for platform in manylinux_2_{28,27,24,18,17}_x86_64 manylinux{2014,1}_x86_64; do
  target+=(--platform "$platform")
done
fetch() { python3 -m pip download --quiet --no-deps "${target[@]}" --dest "$@"; }

rm -rf "$out/whl" "$out/parts"
mkdir -p "$out/whl" "$out/parts"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fetch "$out/whl" "${small[@]}"
fetch "$scratch" "$large"
wheel=$(basename "$scratch"/*.whl)
echo "$wheel" >"$out/parts/name"
split --bytes "$part_bytes" --numeric-suffixes "$scratch/$wheel" "$out/parts/part."
ls -l "$out/whl" "$out/parts"
