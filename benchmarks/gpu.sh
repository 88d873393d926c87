#!/usr/bin/env bash
# On a machine with a GPU, within a given time:
#
#   benchmarks/gpu.sh smoke SECONDS              the table of cases and gradients of recipes, then times
#   benchmarks/gpu.sh speed SECONDS [RECIPE]     times, then a training by a recipe (listops-rotrnn) for the rest
#   benchmarks/gpu.sh sanitize SECONDS           compute-sanitizer's four tools on a row of the table for each function
#   benchmarks/gpu.sh kit                        before, without a GPU: builds what the others carry (`make gpu-kit`)
#
# Results are at most eight files in the folder that OUT names (benchmarks/results/gpu/last): log.txt, rows (*.jsonl),
# the page that benchmarks.gpu_report makes of them, and of a training its output and its folder as run.tgz. It takes as
# many steps as the measured rate allows; one that is unpacked in KIT/runs is resumed. KIT (build/gpu-kit) has one
# archive, for Python 3.12 and compute capability 9.0; where it does not import, the script builds. To try the script
# without a GPU: QUICK=1 takes small sizes, BUILD=0 what is built, and RUN is what runs a module instead of PYTHON.
# The last line says whether all was right, and so does the exit code: 1 if a row is bad, or a part failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
STAGE=${1:?expected a stage: smoke, speed, sanitize or kit} LIMIT=${2:-500} RECIPE=${3:-listops-rotrnn}
KIT=${KIT:-build/gpu-kit} RES=${OUT:-benchmarks/results/gpu/last} PYTHON=${PYTHON:-python3}
unset OUT
export RUN=${RUN:-$PYTHON} PYTHONPATH="$PWD/python:$PWD/tests:$PWD" PATH="$PATH:/usr/local/cuda/bin" PYTHONUNBUFFERED=1
export OMP_WAIT_POLICY=passive XLA_PYTHON_CLIENT_PREALLOCATE=false
quick=() MOST_MIB=55
[[ -z ${QUICK:-} ]] || quick=(--quick)
SMALL=(--set task.name=listops --set task.train=64 --set task.val=8 --set task.test=8 --set task.max_length=24
    --set task.min_length=5 --set task.max_depth=3 --set model.d_model=8 --set model.n_layers=1 --set layer.d_state=4
    --set training.batch=4)

left() { echo $((LIMIT - SECONDS)); }
FAILED=$(mktemp)
trap 'rm -f "$FAILED"' EXIT
say() { echo "== $SECONDS s: $*" >&2; }
fail() { say "FAILED: $*" && echo "$*" >> "$FAILED"; }
# within SECONDS COMMAND...: ended when they are over
within() {
    local code
    (($1 > 0)) || { say "no time for ${*:3:3}" && return; }
    timeout -k 10 "$1" "${@:2}"
    code=$?
    ((code == 0 || code == 124)) || fail "${*:3:3}: exit code $code"
}
# The page, and the last line
report() {
    $PYTHON -m benchmarks.gpu_report "$RES/gpu.md" "$RES" ${1:-} || fail "the rows of $STAGE"
    [[ ! -s $FAILED ]] || { say "end: FAILED: $(paste -sd ';' "$FAILED")" && return 1; }
    say "end: all was right"
}
described() { $PYTHON -c 'from rotrnn import cuda; print(cuda.describe())'; }
# build FOLDER OPTION...: the version of the package is in its egg_info
build() { ROTRNN_GPUS=90 ROTRNN_CUDA=1 $PYTHON setup.py -q egg_info build_ext "${@:2}" --build-temp "build/$1"; }

kit() {
    local venv=build/venv312 mebibytes
    if [[ ! -x $venv/bin/python ]]; then
        "${PYTHON312:-python3.12}" -m venv $venv && $venv/bin/pip install -q numpy setuptools || exit 1
    fi
    PYTHON=$venv/bin/python
    rm -f build/gpu312/python/rotrnn/_c*.so
    mkdir -p "$KIT" build/gpu312/python/rotrnn # not in place, where an editable install has its modules
    build gpu312 --build-lib build/gpu312/python || exit 1
    PYTHONPATH=build/gpu312/python $PYTHON -c 'from rotrnn import _cpu, _cuda' || exit 1
    (cd build/gpu312 && tar cf - python/rotrnn/_c*.so) > "$KIT/kit.tar"
    tar rf "$KIT/kit.tar" python/rotrnn.egg-info
    xz -f "$KIT/kit.tar"
    mebibytes=$({ git ls-files -z --cached --others --exclude-standard && find "$KIT" -type f -print0; } |
        xargs -0 stat -c %s | awk '{sum += $1} END {print int(sum / 2 ^ 20)}')
    echo "$mebibytes MiB travel, of at most $MOST_MIB"
    ((mebibytes <= MOST_MIB))
}

prepare() {
    local card
    card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null)
    say "${card:-no card}, $(nproc) cores, $($PYTHON --version)"
    [[ ${BUILD:-1} == 0 ]] && return
    [[ ! -e $KIT/kit.tar.xz ]] || tar xJf "$KIT/kit.tar.xz"
    described || { say "what was carried does not run: building" && build gpu --inplace && described; }
}

smoke() {
    local seconds=$((LIMIT * 45 / 100)) rows
    export OMP_NUM_THREADS=1
    within $((seconds + 10)) $RUN -m benchmarks.gpu_checks table $seconds "${WORKERS:-6}" > "$RES/table.jsonl" &
    rows=$!
    export OMP_NUM_THREADS=8
    within $seconds $RUN -m benchmarks.gpu_checks grads $seconds "${quick[@]}" | tee "$RES/grads.jsonl"
    wait $rows
    say "table and gradients done"
    times $(($(left) - 10)) limits scan steps
}

# times SECONDS SUBJECT...
times() {
    local few=(${quick[@]:+--recipes "$RECIPE"})
    within "$1" $RUN -m benchmarks.gpu "${@:2}" --seconds "$1" "${quick[@]}" "${few[@]}" | tee -a "$RES/speed.jsonl"
}

# First the rate of what will be trained
speed() {
    local most=$((LIMIT * 40 / 100)) subject
    within $most $RUN -m benchmarks.gpu steps --recipes "$RECIPE" "${quick[@]}" | tee "$RES/speed.jsonl"
    times $((most - SECONDS)) limits scan steps profile layers
    for subject in torch triton lstm; do
        times $((most - SECONDS)) $subject
    done
    say "times done"
    training
}

# SIGTERM lets the run finish its step and save
training() {
    local seconds=$(($(left) - 15)) run=$KIT/runs/$RECIPE how precision steps
    if [[ -e $run/recipe.toml ]]; then
        how=(--resume "$run")
    else
        read -r precision steps < <($RUN -m benchmarks.gpu plan "$RECIPE" $seconds "$RES/speed.jsonl")
        [[ -n ${steps:-} ]] || { fail "no rate of $RECIPE is known" && return; }
        [[ ${#quick[@]} == 0 ]] || steps=8
        how=("$RECIPE" --out "$run" --set "training.precision=$precision" --set "training.steps=$steps"
            --set "training.eval_every=$((steps / 10 + 1))")
        [[ ${#quick[@]} == 0 ]] || how+=("${SMALL[@]}")
    fi
    say "training for $seconds s: ${how[*]}"
    within $seconds $RUN -m rotrnn train "${how[@]}" --no-plots --device cuda > "$RES/train.txt" 2>&1
    tail -n 3 "$RES/train.txt"
    tar czf "$RES/run.tgz" -C "$KIT/runs" "$RECIPE"
}

sanitize() {
    local tool
    for tool in memcheck racecheck initcheck synccheck; do
        say $tool
        GPU_ROWS=small GPU_POOL=0 within $(($(left) / 2)) compute-sanitizer --tool $tool --launch-timeout 120 \
            --error-exitcode 3 $RUN -m pytest -v tests/cuda/test_cases_on_gpu.py > "$RES/$tool.txt" 2>&1
        tail -n 2 "$RES/$tool.txt"
    done
}

case $STAGE in
    kit) kit ;;
    smoke | speed | sanitize)
        mkdir -p "$RES"
        rm -f "$RES"/*.jsonl
        [[ $STAGE != sanitize ]] && rows=--check
        { if prepare; then $STAGE; else fail prepare; fi; report ${rows:-}; } 2>&1 | tee "$RES/log.txt"
        ;;
    *) echo "$STAGE: no such stage" && exit 1 ;;
esac
