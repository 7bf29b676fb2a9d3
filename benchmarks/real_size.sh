#!/bin/sh
# Partial offload of models of real size on a machine with one GPU, beside llama.cpp:
#
#     benchmarks/real_size.sh MODELS [LLAMA_BENCH] [THREADS]
#
# MODELS holds llama1b-bf16.gguf and gptoss20b-mxfp4.gguf; LLAMA_BENCH is llama.cpp's program. Prints what
# benchmarks.real_size prints, one JSON line a case, and llama-bench's rows between them: prefill of 512
# tokens, decoding of 32, the parts of the first step, the bytes per second of loading, peak memory.
set -eu
models=$1
bench=${2:-}
threads=${3:-16}
python=${PYTHON:-python}

for file in llama1b-bf16 gptoss20b-mxfp4; do # read once, so that all sides find it in memory
    cat "$models/$file.gguf" > /dev/null
done
run() { $python -m benchmarks.real_size "$@" -p 512 -n 32; }
compare() { [ -z "$bench" ] || "$bench" -fa 1 -t "$threads" -p 512 -n 32 -o jsonl "$@"; }

# The first step of a model that is all on the GPU: opening, loading, planning, compiling.
run "$models/llama1b-bf16.gguf" --devices cuda:0,cpu:0
run "$models/gptoss20b-mxfp4.gguf" --devices cuda:0,cpu:0
compare -m "$models/llama1b-bf16.gguf" -ngl 99

# Layers on the CPU.
compare -m "$models/llama1b-bf16.gguf" -ngl 9
for when in auto off; do
    run "$models/llama1b-bf16.gguf" --devices cuda:0,cpu:0 -ngl 9 --op-offload $when
done

# Experts on the CPU.
compare -m "$models/gptoss20b-mxfp4.gguf" -ngl 99 -ncmoe 12
run "$models/gptoss20b-mxfp4.gguf" --devices cuda:0,cpu:0 --n-cpu-moe 12

# Where all plans use calibrated rates.
GGSCHED_RATES=$(mktemp -u)
export GGSCHED_RATES
$python -m ggsched calibrate --devices cuda:0,cpu:0
run "$models/llama1b-bf16.gguf" --devices cuda:0,cpu:0 -ngl 9
run "$models/gptoss20b-mxfp4.gguf" --devices cuda:0,cpu:0 --n-cpu-moe 12
