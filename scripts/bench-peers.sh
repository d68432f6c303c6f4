#!/usr/bin/env bash
# Other clients and ours against one server whose times are known, alternating, at 16 streams of 32 tokens: what each reports
# over what is true, and the processor time it took. Says which clients are missing and how to name them:
#   VLLM=, SGLANG=, GUIDELLM=, AIPERF=, LLAMA_BENCHY= are folders of Python environments that hold the client.
#   ROUNDS=3 REQUESTS=64 STREAMS=16 TTFT=50 ITL=20 TOKENS=32
set -euo pipefail
cd "$(dirname "$0")/.."
ROUNDS=${ROUNDS:-3} REQUESTS=${REQUESTS:-64} STREAMS=${STREAMS:-16} TTFT=${TTFT:-50} ITL=${ITL:-20} TOKENS=${TOKENS:-32}
VLLM=${VLLM:-.engines/vllm/venv} SGLANG=${SGLANG:-.engines/sglang/venv}
GUIDELLM=${GUIDELLM:-.engines/guidellm/venv} AIPERF=${AIPERF:-.engines/aiperf/venv} LLAMA_BENCHY=${LLAMA_BENCHY:-.engines/llama-benchy/venv}
tokenizer=$PWD/testdata/models/tiny-qwen3/hf
work=$(mktemp -d)
bin/plugins/simulated serve --model tiny-qwen3 --ttft "${TTFT}ms" --itl "${ITL}ms" 2>"$work/server.log" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
for _ in $(seq 100); do
  url=$(sed -n 's/.*listening on \([^,]*\),.*/http:\/\/\1/p' "$work/server.log")
  [ -n "$url" ] && break
  sleep 0.1
done
[ -n "$url" ] || { cat "$work/server.log" >&2; exit 1; }

broker() { bin/broker calibrate --url "$url" --ttft "${TTFT}ms" --itl "${ITL}ms" --tokens "$TOKENS" --concurrency "$STREAMS" --requests "$REQUESTS" --json >"$1/result.json" || [ $? = 11 ]; }
vllm() {
  HF_HUB_OFFLINE=1 "$VLLM/bin/vllm" bench serve --backend openai --base-url "$url" --model tiny-qwen3 --tokenizer "$tokenizer" --dataset-name random \
    --random-input-len 16 --random-output-len "$TOKENS" --ignore-eos --num-prompts "$REQUESTS" --max-concurrency "$STREAMS" --save-result --result-dir "$1" --result-filename result.json
}
sglang() {
  HF_HUB_OFFLINE=1 "$SGLANG/bin/python" -m sglang.bench_serving --backend vllm --base-url "$url" --model tiny-qwen3 --tokenizer "$tokenizer" --dataset-name random-ids \
    --random-input-len 16 --random-output-len "$TOKENS" --random-range-ratio 1 --num-prompts "$REQUESTS" --max-concurrency "$STREAMS" --output-file "$1/result.json"
}
guidellm() {
  "$GUIDELLM/bin/guidellm" benchmark run --target "$url" --profile concurrent --rate "$STREAMS" --max-requests "$REQUESTS" --processor "$tokenizer" \
    --data "prompt_tokens=16,output_tokens=$TOKENS" --output-dir "$1" --outputs result.json
}
aiperf() { # it reads a local tokenizer only where the offline switches are unset
  "$AIPERF/bin/aiperf" profile --model tiny-qwen3 --url "$url" --endpoint-type completions --streaming --tokenizer "$tokenizer" --synthetic-input-tokens-mean 16 \
    --synthetic-input-tokens-stddev 0 --output-tokens-mean "$TOKENS" --output-tokens-stddev 0 --extra-inputs ignore_eos:true --concurrency "$STREAMS" \
    --request-count "$REQUESTS" --ui none --artifact-dir "$1" && cp "$(find "$1" -name profile_export_aiperf.json | head -n1)" "$1/result.json"
}
llama_benchy() { # it wants a book from the network; a text of ours is served to it
  local port=$((20000 + RANDOM % 20000)) book status=0
  "$LLAMA_BENCHY/bin/python" -m http.server --bind 127.0.0.1 --directory docs "$port" &
  book=$!
  sleep 1
  "$LLAMA_BENCHY/bin/llama-benchy" --base-url "$url/v1" --model tiny-qwen3 --tokenizer "$tokenizer" --pp 16 --tg "$TOKENS" --concurrency "$STREAMS" \
    --runs $((REQUESTS / STREAMS)) --book-url "http://127.0.0.1:$port/protocol.md" --skip-coherence --no-warmup --format json --save-result "$1/result.json" || status=$?
  kill "$book"
  return "$status"
}

clients=(broker)
have() { if [ -x "$2" ]; then clients+=("$1"); else echo "missing: $1 (no $2; $3= names its environment)"; fi; }
have vllm "$VLLM/bin/vllm" VLLM
have sglang "$SGLANG/bin/sglang" SGLANG
have guidellm "$GUIDELLM/bin/guidellm" GUIDELLM
have aiperf "$AIPERF/bin/aiperf" AIPERF
have llama_benchy "$LLAMA_BENCHY/bin/llama-benchy" LLAMA_BENCHY

# Each round runs every client once, in turns from the front and from the back.
TIMEFORMAT='%U %S'
for round in $(seq "$ROUNDS"); do
  order=("${clients[@]}")
  if ((round % 2 == 0)); then order=(); for c in "${clients[@]}"; do order=("$c" "${order[@]}"); done; fi
  for c in "${order[@]}"; do
    out=$work/$c-$round
    mkdir "$out"
    echo "round $round of $ROUNDS: $c" >&2
    if ! { time "$c" "$out" >"$out/log" 2>&1; } 2>"$out/cpu" || [ ! -s "$out/result.json" ]; then
      echo "$c gave no result: $(grep -v '^ *$' "$out/log" | tail -n1 | cut -c1-200)"
      rm -f "$out/result.json"
    fi
  done
done

# number FILE NAME: one figure of a result, in ms; ours is the client's own report, the others' are read by broker import.
number() {
  case $1 in
  */broker-*) tr -d ' \n' <"$1" | grep -o "\"metric\":\"$(tr '[:lower:]' '[:upper:]' <<<"${2%_*}")\"[^}]*" | grep -o "\"${2#*_}_ms\":[0-9.]*" | cut -d: -f2 ;;
  *) bin/broker import --runs "$work/runs" --format csv "$1" --run "n$RANDOM$RANDOM" 2>/dev/null | awk -F, -v n="$2" '$10 == n {print $12}' ;;
  esac | head -n1
}
median() { sort -g | awk '{x[NR] = $1} END {if (NR) print (x[int((NR + 1) / 2)] + x[int((NR + 2) / 2)]) / 2; else print "-"}'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a == "-" || b == "-" || b == 0) print "-"; else printf "%.4f", a / b}'; }

echo
echo "SIMULATED server: TTFT $TTFT ms, ITL $ITL ms, $TOKENS tokens, $REQUESTS requests at $STREAMS streams; median of $ROUNDS rounds; ms"
echo "TPOT is each tool's own (aiperf calls it ITL, guidellm's includes TTFT); cpu is the whole process, its start and its warm-up included"
printf '%-13s %10s %8s %10s %10s %8s %8s %9s\n' client TTFT /true 'TTFT p99' TPOT /true cpu-s /ours
for c in "${clients[@]}"; do
  for n in ttft_mean ttft_p99 tpot_mean itl_mean; do
    for r in "$work/$c"-*/result.json; do [ -s "$r" ] && number "$r" "$n"; done >"$work/$n" || true
  done
  [ -s "$work/tpot_mean" ] || [ "$c" = llama_benchy ] || cp "$work/itl_mean" "$work/tpot_mean"
  cpu=$(for f in "$work/$c"-*/cpu; do tail -n1 "$f" | awk '{print $1 + $2}'; done | median)
  [ "$c" = broker ] && ours=$cpu
  t=$(median <"$work/ttft_mean") p=$(median <"$work/ttft_p99") o=$(median <"$work/tpot_mean")
  printf '%-13s %10s %8s %10s %10s %8s %8s %9s\n' "$c" "$t" "$(ratio "$t" "$TTFT")" "$p" "$o" "$(ratio "$o" "$ITL")" "$cpu" "$(ratio "$cpu" "$ours")"
done
