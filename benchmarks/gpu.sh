#!/usr/bin/env bash
# bash benchmarks/gpu.sh [--quick]: check and measure a GPU in 25 minutes, without a network.
# Runs the tests of a GPU, compile, the five apps in bf16, and the operator and step benchmarks with
# what is installed; writes benchmarks/results/<date>-<device>.md. --quick does so on a CPU, small.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1
DEVICE=cuda ACCELERATOR=gpu SIZE=() TESTS=(tests/core) PATIENCE=1
if [ "${1:-}" = --quick ]; then
  DEVICE=cpu ACCELERATOR=cpu SIZE=(--quick) PATIENCE=4
  TESTS=(tests/core/test_cuda.py tests/core/test_attention.py)
fi
OUT=benchmarks/results LOGS=$(mktemp -d) FAILED=0
TABLE=$OUT/$(date +%F)-$DEVICE-checks.md
mkdir -p "$OUT"
printf '# Checks on %s\n\n| step | result | seconds |\n|---|---|---:|\n' "$DEVICE" > "$TABLE"

run_step() {  # run_step <name> <seconds at most on a GPU> <command>: one row of the table
  local name=$1 limit=$2 began=$SECONDS result=passed
  shift 2
  timeout "$((limit * PATIENCE))" "$@" > "$LOGS/$name" 2>&1 || { result="failed ($?)"; FAILED=1; tail -15 "$LOGS/$name"; }
  echo "| $name | $result | $((SECONDS - began)) |" | tee -a "$TABLE"
}

run_step tests 400 python -m pytest -q -p no:cacheprovider "${TESTS[@]}"
run_step compile 200 python -c "
import torch
from attention_core import GFSA, SelfAttention
layer, x = SelfAttention(64, 4, filter=GFSA).to('$DEVICE'), torch.randn(2, 99, 64, device='$DEVICE')
torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x), rtol=1e-3, atol=1e-3)"
for app in graph nlp sequence speech vision; do
  run_step "$app" 150 python -m experiment_kit compare "$app" --profile=smoke --methods=[gfsa] --seeds=[0] \
    --folder="$LOGS/runs" --args="--trainer.accelerator=$ACCELERATOR --trainer.precision=bf16-mixed \
    --trainer.max_epochs=1 --trainer.limit_train_batches=2 --trainer.limit_val_batches=1 --trainer.limit_test_batches=1"
done
run_step benchmarks 500 python benchmarks/run.py "${SIZE[@]}" --device "$DEVICE" --write "$LOGS"
sed -n '/^- commit/,$p' "$LOGS"/*-"$DEVICE".md | sed '1i\\' >> "$TABLE"
echo "wrote $TABLE"
exit "$FAILED"
