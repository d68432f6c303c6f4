#!/bin/sh
# Runs every command of docs/grpc.md with the real grpcurl against a live daemon and compares with the page.
#
#   scripts/grpcurl.sh            fail where the page is not what is printed
#   scripts/grpcurl.sh -update    write what is printed into the page
set -eu
cd "$(dirname "$0")/.."

version=v1.9.4
tool=$PWD/.tools/bin/grpcurl
if [ ! -x "$tool" ]; then
	GOBIN="$PWD/.tools/bin" ${GO:-go} install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version"
fi
GRPCURL=$tool exec ${GO:-go} test ./broker -run '^TestCookbook$' -count=1 ${1:+-args "$1"}
