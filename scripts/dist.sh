#!/usr/bin/env bash
# Archives for linux/arm64 (GB10) and linux/amd64. The NVML plugin is built with cgo where a compiler for the target is here
# (aarch64-linux-gnu-gcc for arm64); otherwise the archive carries the plugin that says it has no NVML, and so does this script.
set -euo pipefail
version=${1:?usage: dist.sh VERSION LDFLAGS PLUGIN_FLAGS} ldflags=${2:?} plugin_flags=${3:?}
rm -rf dist && mkdir -p dist
for arch in arm64 amd64; do
  name=broker-$version-linux-$arch dir=dist/broker-$version-linux-$arch
  mkdir -p "$dir/plugins"
  GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath -ldflags "$ldflags" -o "$dir/broker" ./broker
  for p in llamacpp sglang simulated vllm vllmcpp; do
    GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath $plugin_flags -ldflags '-s -w' -o "$dir/plugins/$p" "./plugins/$p"
  done
  cc=cc
  [ "$arch" = arm64 ] && [ "$(uname -m)" != aarch64 ] && cc=aarch64-linux-gnu-gcc
  [ "$arch" = amd64 ] && [ "$(uname -m)" != x86_64 ] && cc=x86_64-linux-gnu-gcc
  if command -v "$cc" >/dev/null; then
    GOOS=linux GOARCH=$arch CGO_ENABLED=1 CC=$cc CGO_CFLAGS=-w go build -trimpath $plugin_flags -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o "$dir/plugins/nvml" ./plugins/nvml
  else
    echo "no $cc: $name carries plugins/nvml without NVML (GPU telemetry will be absent, and said so)"
    GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath $plugin_flags -ldflags '-s -w' -o "$dir/plugins/nvml" ./plugins/nvml
  fi
  cp README.md LICENSE CHANGELOG.md "$dir/"
  cp -r docs "$dir/"
  tar -C dist -czf "dist/$name.tar.gz" "$name"
  rm -rf "$dir"
  (cd dist && sha256sum "$name.tar.gz")
done
