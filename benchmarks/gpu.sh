#!/usr/bin/env bash
# bash benchmarks/gpu.sh [--quick]: check and measure a GPU in 25 minutes, without a network.
# Runs the tests of a GPU, compile, the five apps in bf16, and the operator and step benchmarks with
# what is installed; writes benchmarks/results/<date>-<device>-checks.md. --quick: small, on a CPU.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1
export PYTHONPATH="$(printf '%s:' "$PWD" "$PWD"/{packages,apps}/*/src)${PYTHONPATH:-}"
DEVICE=cuda ACCELERATOR=gpu SIZE=() TESTS=(tests/core) PATIENCE=1
if [ "${1:-}" = --quick ]; then
  DEVICE=cpu ACCELERATOR=cpu SIZE=(--quick) PATIENCE=4
  TESTS=(tests/core/test_cuda.py tests/core/test_attention.py)
elif python -c "import xdist" 2> /dev/null; then
  TESTS+=(-n 8)
fi
mkdir -p benchmarks/results
LOGS=$(mktemp -d) FAILED=0 TABLE=benchmarks/results/$(date +%F)-$DEVICE-checks.md
printf '# Checks on %s\n\n| step | result | seconds |\n|---|---|---:|\n' "$DEVICE" > "$TABLE"

run_step() {  # run_step <name> <module> <seconds at most on a GPU> <command>: a row of the table
  local name=$1 module=$2 limit=$3 began=$SECONDS result=passed missing
  shift 3
  missing=$(python -c "import $module" 2>&1 | tail -1)
  if [[ $missing == *Error* ]]; then
    result="left out (${missing##*: })"
  elif ! timeout "$((limit * PATIENCE))" "$@" > "$LOGS/$name" 2>&1; then
    result=failed FAILED=1
    tail -15 "$LOGS/$name"
  fi
  echo "| $name | $result | $((SECONDS - began)) |" | tee -a "$TABLE"
}

run_step tests pytest 400 python -m pytest -q -p no:cacheprovider "${TESTS[@]}"
run_step compile torch 200 python -c "
import torch
from attention_core import GFSA, SelfAttention
layer, x = SelfAttention(64, 4, filter=GFSA).to('$DEVICE'), torch.randn(2, 99, 64, device='$DEVICE')
torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x), rtol=1e-3, atol=1e-3)"
for app in graph nlp sequence speech vision; do
  run_step "$app" "attention_$app.module" 150 python -m experiment_kit compare "$app" --profile=smoke \
    --methods=[gfsa] --seeds=[0] --folder="$LOGS/runs" --args="--trainer.accelerator=$ACCELERATOR \
    --trainer.precision=bf16-mixed --trainer.max_epochs=1 --trainer.limit_train_batches=2 \
    --trainer.limit_val_batches=1 --trainer.limit_test_batches=1"
done
run_step benchmarks timm 900 python benchmarks/run.py "${SIZE[@]}" --device "$DEVICE" \
  --only operators agf vision --write "$LOGS"
sed 1d "$LOGS"/*-"$DEVICE"-*.md >> "$TABLE"
echo "wrote $TABLE"
exit "$FAILED"
