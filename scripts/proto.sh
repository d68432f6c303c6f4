#!/bin/sh
# The protocol's tools. buf comes from npm, pinned, into .tools (git-ignored); the generators are tools of go.mod, so that
# generated code and runtime always have the same version.
#
#   scripts/proto.sh generate       proto/gen from proto/*/v1
#   scripts/proto.sh lint           style and comments, format
#   scripts/proto.sh check          generate, then fail where proto/gen differs from what is committed
#   scripts/proto.sh breaking REF   fail where the wire or the names broke since the commit or tag REF
set -eu
cd "$(dirname "$0")/.."

version=1.75.0
buf=.tools/node_modules/.bin/buf
if [ "$("$buf" --version 2>/dev/null || true)" != "$version" ]; then
	command -v npm >/dev/null || { echo "proto.sh: buf $version is missing and npm is not installed to get it" >&2; exit 1; }
	npm install --silent --no-fund --no-audit --no-save --prefix .tools "@bufbuild/buf@$version" >&2
fi

case "${1-}" in
generate) "$buf" generate ;;
lint)
	"$buf" lint
	"$buf" format --diff --exit-code
	;;
check)
	"$buf" generate
	changed=$(git status --porcelain -- proto/gen)
	if [ -n "$changed" ]; then
		git --no-pager diff --stat -- proto/gen
		echo "proto.sh: proto/gen is not what proto/*.proto generates; run scripts/proto.sh generate and commit:" >&2
		echo "$changed" >&2
		exit 1
	fi
	;;
breaking) "$buf" breaking --against ".git#ref=${2:?name a commit or tag}" ;;
*)
	echo "usage: scripts/proto.sh generate | lint | check | breaking REF" >&2
	exit 2
	;;
esac
