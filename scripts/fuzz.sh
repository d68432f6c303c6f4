#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other. usage: fuzz.sh TIME   (as go test -fuzztime takes it)
set -euo pipefail
time=${1:?usage: fuzz.sh TIME}
grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do
  grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -d' ' -f2 | while read -r target; do
    echo "== $dir $target"
    go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
  done
done
