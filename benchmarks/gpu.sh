#!/usr/bin/env bash
# What a GPU shows, in stages of a few minutes each:
#
#   benchmarks/gpu.sh machine     build by nvcc; copies, products of matrices, launches; the table of cases on the card
#   benchmarks/gpu.sh sanitize    compute-sanitizer's four tools on a row of the table for each function
#   benchmarks/gpu.sh speed       scans beside copies and peers, layers and blocks
#   benchmarks/gpu.sh steps       training steps of the LRU's six recipes in three precisions
#   benchmarks/gpu.sh listops     training of listops-lru by its recipe; likewise pathfinder and pathx
#   benchmarks/gpu.sh report      gpu.md, gpu.json and gpu.png from what there is, as after every stage
#   benchmarks/gpu.sh all         everything, as far as the time goes
#
# OUT (benchmarks/results/gpu) is where results go. Its folder parts has a file for each part of a stage, and a part that
# has one is not run again; its folder runs has what is trained, which goes on where it was. LIMIT (540) is the seconds
# that a call may take: what is left then is for the next. Exit code 0: all is done; 1: a part failed; 2: more is to do.
# PRECISION (tf32) is that of training. To try the script itself: QUICK=1 takes small sizes, BUILD=0 what is built, RUN is
# what runs a module instead of PYTHON, and WORKERS the processes of the table of cases.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-benchmarks/results/gpu} LIMIT=${LIMIT:-540} PRECISION=${PRECISION:-tf32} PYTHON=${PYTHON:-python3}
RUN=${RUN:-$PYTHON}
export PYTHONPATH="$PWD/python:$PWD/tests:$PWD" PATH="$PATH:/usr/local/cuda/bin" PYTHONUNBUFFERED=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false
parts=$OUT/parts quick=${QUICK:+--quick} failed=0 unfinished=0
SMALL=(--set task.train=64 --set task.val=8 --set task.test=8 --set task.max_length=24 --set task.min_length=5
    --set task.max_depth=3 --set model.d_model=8 --set model.n_layers=1 --set layer.d_state=4 --set training.batch=4
    --set training.steps=30)
mkdir -p "$parts" "$OUT/runs"

# part FILE COMMAND...: what the command prints is the file, once it has succeeded
part() {
    local file=$parts/$1 left=$((LIMIT - SECONDS)) before=$SECONDS
    shift
    [[ -e $file ]] && return
    if ((left < 10)); then
        unfinished=1
        return
    fi
    rm -f "$file".*
    timeout -k 10 "$left" "$@" > "$file.part" 2> "$file.err"
    local code=$?
    if ((code == 0)); then
        mv "$file.part" "$file" && rm "$file.err"
    elif ((code == 124 || code == 137)); then
        unfinished=1
    else
        failed=1
    fi
    echo "$(basename "$file"): exit code $code after $((SECONDS - before)) s"
    ((code == 0)) || tail -n 5 "$file.part" "$file.err"
}

# Every call builds, and compiles only what has changed; the version of the package is in its egg_info
build() {
    ROTRNN_CUDA=1 NVCC_APPEND_FLAGS=-lineinfo "$PYTHON" setup.py -q egg_info build_ext --inplace \
        --build-temp build/inplace > "$parts/build.log" 2>&1 ||
        { tail -n 20 "$parts/build.log"; exit 1; }
    echo "built after $SECONDS s"
    "$PYTHON" -c 'from rotrnn import cuda; print(cuda.describe())' || exit 1
}

# cases FILE WORKERS SHARD [COMMAND BEFORE PYTHON...]
cases() {
    local file=$1 workers=$2 shard=$3
    shift 3
    GPU_SHARD=$shard part "$file" "$@" $RUN -m pytest -rs -p no:cacheprovider -n "$workers" \
        tests/cuda/test_cases_on_gpu.py
}

machine() {
    part machine.jsonl $RUN -m benchmarks.gpu machine $quick
    part products.jsonl $RUN -m benchmarks.gpu products $quick
    part torch.jsonl $RUN -m benchmarks.gpu torch $quick
    local k
    for k in 0 1; do
        cases "cases-$k.txt" "${WORKERS:-8}" "$k/2"
    done
}

sanitize() {
    local tool k
    for tool in memcheck racecheck initcheck synccheck; do
        for k in 0 1 2 3; do
            GPU_ROWS=small GPU_POOL=0 cases "$tool-$k.txt" 0 "$k/4" \
                compute-sanitizer --tool "$tool" --error-exitcode 3 --target-processes all --launch-timeout 120
        done
    done
}

speed() {
    local subject
    for subject in scan jax triton layers lstm; do
        part "$subject.jsonl" $RUN -m benchmarks.gpu "$subject" $quick
    done
}

steps() {
    local recipe precision
    for precision in float32 tf32 bf16; do
        for recipe in scifar listops text retrieval pathfinder pathx; do
            part "steps-$recipe-$precision.jsonl" $RUN -m benchmarks.gpu steps "$recipe" "$precision" $quick
        done
    done
}

# SIGTERM lets the run finish its step and save; `timeout` then says 124, as if it had not ended
training() {
    local name=$1-lru left=$((LIMIT - SECONDS - 40)) code
    local run=$OUT/runs/$name-$PRECISION
    [[ -e $run/result.json ]] && return
    if ((left < 30)); then
        unfinished=1
        return
    fi
    local how=("$name" --out "$run" --set "training.precision=$PRECISION")
    [[ -n $quick ]] && how+=("${SMALL[@]}")
    [[ -e $run/recipe.toml ]] && how=(--resume "$run")
    timeout -k 30 "$left" $RUN -m rotrnn train "${how[@]}" --no-plots --device cuda >> "$parts/$name.log" 2>&1
    code=$?
    echo "$name: exit code $code; $(tail -n 1 "$parts/$name.log")"
    ((code == 124 || code == 137)) && unfinished=1 && return
    ((code == 0)) || { failed=1 && tail -n 5 "$parts/$name.log"; }
}

[[ ${BUILD:-1} == 0 ]] || build
for stage in "${@:?expected a stage: machine, sanitize, speed, steps, listops, pathfinder, pathx, report or all}"; do
    case $stage in
        machine | sanitize | speed | steps) $stage ;;
        listops | pathfinder | pathx) training "$stage" ;;
        report) ;;
        all) machine; sanitize; speed; steps; training listops; training pathfinder; training pathx ;;
        *) echo "$stage: no such stage" && exit 1 ;;
    esac
done
"$PYTHON" -m benchmarks.gpu report "$OUT" || failed=1
((failed)) && exit 1
((unfinished)) && echo "more is to do: call it again" && exit 2
exit 0
