#!/usr/bin/env bash
# Installs llama-server from Debian sid as a tree of its own into DIR/sid. usage: llamacpp.sh DIR   (25 s, 380 MB)
# It needs root and a Debian-like machine; running the server afterwards needs neither: the tree's own loader runs it.
# The model that `make real` runs on it goes beside DIR, into models/.
# In broker.yaml: plugin: llamacpp, settings: {root: DIR/sid, backend: auto}
set -euo pipefail
dir=${1:?usage: llamacpp.sh DIR}
tree=$dir/sid
model() { "$(dirname "$0")/gemma-3-270m.sh" "$(dirname "$dir")/models"; }
if [ -n "${LLAMA_SERVER:-}" ]; then
  echo "LLAMA_SERVER=$LLAMA_SERVER is used as it is: set binary in broker.yaml to it"
  model
  exit 0
fi
if [ -x "$tree/usr/bin/llama-server" ]; then
  echo "$tree: already there; remove $dir to install anew"
  model
  exit 0
fi
fail() { echo "llamacpp.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "debootstrap needs root; or build llama.cpp yourself and name it: LLAMA_SERVER=/path/to/llama-server"
command -v debootstrap >/dev/null || {
  command -v apt-get >/dev/null || fail "neither debootstrap nor apt-get is here"
  apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null
}

# The mirror that this machine uses already, in either form of its configuration.
mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
[ -n "$mirror" ] || mirror=$(awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /^[a-z]+:\/\//) {print $i; exit}}' /etc/apt/sources.list 2>/dev/null || true)
[ -n "$mirror" ] || fail "no Debian mirror in /etc/apt; write one into /etc/apt/sources.list"

mkdir -p "$dir"
rm -rf "$tree"
trap 'rm -rf "$tree"' ERR INT TERM   # half a tree would look installed
debootstrap --variant=minbase sid "$tree" "$mirror" >"$dir/debootstrap.log" 2>&1 || { tail -5 "$dir/debootstrap.log" >&2; false; }
# What this machine needs to reach its mirror, the tree needs too.
cp /etc/apt/apt.conf.d/* "$tree/etc/apt/apt.conf.d/" 2>/dev/null || true
cp /etc/hosts /etc/resolv.conf "$tree/etc/" 2>/dev/null || true
DEBIAN_FRONTEND=noninteractive chroot "$tree" apt-get install -y -qq --no-install-recommends llama.cpp-tools >"$dir/apt.log" 2>&1 || { tail -5 "$dir/apt.log" >&2; false; }
trap - ERR INT TERM

lib=$(dirname "$(ls "$tree"/usr/lib/*-linux-gnu/ld-linux-*.so.* | head -1)")
"$lib"/ld-linux-*.so.* --library-path "$lib:$lib/llama" "$tree/usr/bin/llama-server" --version 2>&1 | head -1
echo "backends: $(cd "$lib"/ggml/backends*/ && ls libggml-cpu-*.so | sed 's/libggml-cpu-\(.*\)\.so/\1/' | tr '\n' ' ')"
model
