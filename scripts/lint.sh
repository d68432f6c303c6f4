#!/usr/bin/env bash
# Everything that is checked without running the program. golangci-lint is built into .tools at the version below, once.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.15.0 tool=.tools/bin/golangci-lint
fmt=$(git ls-files '*.go' | grep -v '^proto/gen/' | xargs gofmt -l)
if [ -n "$fmt" ]; then
  echo "not formatted:" && echo "$fmt" && exit 1
fi
go vet ./...
if [ ! -x "$tool" ]; then
  GOBIN=$PWD/.tools/bin GOFLAGS=-mod=mod go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
fi
"$tool" run ./...
scripts/proto.sh lint
scripts/proto.sh check
if base=$(git describe --tags --abbrev=0 2>/dev/null); then
  scripts/proto.sh breaking "$base"
fi
