#!/usr/bin/env bash
# Fourteen minutes on a machine with a GPU: the tests that need one, the benchmark, then new seeds for the claims that are open.
#
#     OUT=/a/folder bash docs/on_a_gpu.sh                                    # all of it
#     OUT=/a/folder MINUTES=9 STEPS="tests seeds" bash docs/on_a_gpu.sh      # a part of it, where one command may not take so long
#     OUT=/a/folder MINUTES=9 STEPS=benchmark bash docs/on_a_gpu.sh          # the rest; CLAIMS=K1c,T12c goes on with seeds of these
#
# It needs no network, no DVC and no MLflow, but torch, numpy, numba, pandas, pydantic, pyyaml, safetensors, rich, scipy, pillow, filelock,
# cuda-core, pytest with timeout and xdist, hypothesis, and timm for the benchmark. Wheels of what is missing there are installed from
# .whl/, beside this checkout's Python. Of the checkout it needs everything but store/ and reports/, and data/raw, which git ignores, as
# `dvc repro fetch` leaves it. COMMIT names the commit where .git is missing: by it pages say which claims stood before a seed was trained.
# At most 8 files of 16 MiB come to OUT. Afterwards, in a full clone: `cat OUT/seeds-*.tar.gz | tar -xzif - -C .`, the new
# seeds in params.yaml, `make repro`: it trains none of them.
set -u
cd "$(dirname "$0")/.."
export OUT=${OUT:-build/on-a-gpu} LAB_DEVICE=${LAB_DEVICE:-cuda} PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
MINUTES=${MINUTES:-14} TESTS=${TESTS:-3} STEPS=${STEPS:-tests benchmark seeds} python=${PYTHON:-python3}
end=$((SECONDS + MINUTES * 60))
mkdir -p "$OUT"
[ -e .git ] || : "${COMMIT:?has to name the commit, because there is no .git here}"
{
    if [ -d .whl ]; then
        $python -m pip install -q --no-index --no-deps --upgrade --target build/wheels .whl/*.whl || exit
        export PYTHONPATH=$PYTHONPATH:$PWD/build/wheels
    fi
    $python -m docs.on_a_gpu prepare || exit
    for step in $STEPS; do
        echo "== $step"
        case $step in
            tests) timeout -s INT -k 20 $((TESTS * 60)) $python -m pytest -v -m cuda -n "${PROCESSES:-12}" -p no:cacheprovider -W default tests/training tests/kernels ;;
            benchmark) timeout $((end - SECONDS < 360 ? end - SECONDS : 360)) $python -m benchmarks --gpu --out "$OUT" ${QUICK:+--quick} ;;
            seeds) $python -m docs.on_a_gpu seeds --seconds $((end - SECONDS)) ${EPOCHS:+--epochs "$EPOCHS"} ${COUNT:+--count "$COUNT"} ${CLAIMS:+--claims "$CLAIMS"} ;;
        esac
    done
} 2>&1 | tee "$OUT/log.txt"
