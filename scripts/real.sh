#!/usr/bin/env bash
# The main job on the real engines that are installed, profile quick; says what is missing and how to get it.
#   LLAMA_SERVER=, VLLM=, SGLANG=, VLLMCPP_SERVER= name engines that are installed elsewhere.
#   PAIRS=auto-haswell runs that pair alone (what CI does, in under six minutes); RUN= names its run.
set -euo pipefail
cd "$(dirname "$0")/.."
export BROKER_ENGINES=${BROKER_ENGINES:-$PWD/.engines}
run() { echo "+ bin/broker $*"; bin/broker --config broker/config/real.yaml "$@"; }
status=0 ran=

if [ -x "$BROKER_ENGINES/llamacpp/sid/usr/bin/llama-server" ] && [ -f "$BROKER_ENGINES/models/gemma-3-270m-q4_k_m.gguf" ]; then
  engines=llama-auto,llama-haswell
  [ "${PAIRS:-}" = auto-haswell ] || engines=$engines,llama-x64
  run matrix --model gemma-3-270m --profile quick --engines "$engines" ${RUN:+--run "$RUN"} || status=$?
  ran=1
else
  echo "llama.cpp is not installed: make engines ENGINES=llamacpp (400 MB and a 250 MB model)"
fi

if [ "${PAIRS:-}" != auto-haswell ]; then
  engines=
  for e in vllm sglang; do
    if [ -x "$BROKER_ENGINES/$e/venv/bin/python" ]; then engines=$engines,$e; else echo "$e is not installed: make engines ENGINES=$e (6 GB)"; fi
  done
  [ -n "${VLLMCPP_SERVER:-}" ] && engines=$engines,ours || echo "ours is not named: VLLMCPP_SERVER=/path/of/server (20 minutes to build)"
  case $engines in
  ,*,*)
    [ -x "$BROKER_ENGINES/llamacpp/sid/usr/bin/llama-server" ] && engines=$engines,llama-auto
    BROKER_SUBJECT=${engines##,} && BROKER_SUBJECT=${BROKER_SUBJECT%%,*} && export BROKER_SUBJECT
    run matrix --model tiny-qwen3 --profile quick --workload tiny --engines "${engines#,}" || status=$?
    ran=1
    ;;
  esac
  if [ -x "$BROKER_ENGINES/vllm/venv/bin/python" ]; then # one engine as two arms: the compute type is what differs, and both say so
    BROKER_SUBJECT=vllm-f32 run matrix --model tiny-qwen3 --profile quick --workload tiny --engines vllm-f32,vllm-bf16 || status=$?
    ran=1
  fi
fi
[ -n "$ran" ] || { echo "no real engine is installed; make engines"; exit 7; }
exit "$status"
