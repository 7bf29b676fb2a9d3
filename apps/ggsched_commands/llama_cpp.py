"""Options of llama.cpp that ggsched does not declare itself: what each becomes.

Names of one option stand together, then ``V`` for each value, or ``W`` for a word such as ``on``
that may be left out; ``W:on`` says what counts then. ``= 0 1`` lists values that say what is so
anyway: they are accepted in silence.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

from ggsched.cli.spelling import Foreign

_MEANS: Final = {
    "-dev --device V": "--devices {devices}",
    "-fit --fit W:on": "--fit {}",
    "-fitt --fit-target V": "--fit-margin {}MiB",
    "--op-offload W:auto": "--op-offload {}",
    "--no-op-offload, -nopo W:1 = 0": "--op-offload off",
    "-nkvo --no-kv-offload W:1 = 0": r"-ot [.][kv]_cache$=cpu",
    "--usage": "--help",
    "-no-cnv --no-conversation, -kvo --kv-offload, --jinja, --no-display-prompt, --offline": "",
    "--no-prefill-assistant, --no-skip-chat-parsing, --cache-prompt, --no-agent, -no-ag": "",
}
"""Options that are others here; ``{}`` is the value."""

_IGNORED: Final = {
    "attention is always fused here": "-fa --flash-attn W",
    "prompts and tokens are computed by as many threads, see -t": "-tb --threads-batch V",
    "threads are not bound to cores here; taskset does it":
        "-C --cpu-mask V, -Cr --cpu-range V, --cpu-strict V, -Cb --cpu-mask-batch V, "
        "-Crb --cpu-range-batch V, --cpu-strict-batch V",
    "threads have the priority of the process, see nice": "--prio V, --prio-batch V",
    "how threads wait is not an option here": "--poll V, --poll-batch V",
    "memory of several nodes is not told apart; numactl does it": "--numa V",
    "files are always mapped, and weights are used in place where a device can":
        "--mlock, --mmap --no-mmap W:1, -mmp V, -dio --direct-io W:1, -ndio --no-direct-io, "
        "-lm --load-mode V, -lzm --lazy-mode V, --repack W:1, -nr --no-repack, --no-host W:1",
    "the cache always has a row for each token": "--swa-full, -dt --defrag-thold V",
    "sequences always join and leave batches": "-cb --cont-batching, -nocb --no-cont-batching",
    "the first run of a test is never measured": "--warmup --no-warmup",
    "text is written without colours": "-co --color W:on, --log-colors W:on, --simple-io",
    "messages go to stderr, as many as GGSCHED_DEBUG=0 to 4 says":
        "--log-disable, -lv --verbosity --log-verbosity V, --log-prefix --no-log-prefix, "
        "--log-timestamps --no-log-timestamps, --log-jsonl --no-log-jsonl",
    "times are always written, on stderr": "--perf --no-perf, --show-timings --no-show-timings",
    "where tokens are drawn follows from where logits are": "-bs --backend-sampling",
    "how far a measurement is is not written": "--progress",
    "a draft model lives whole on its devices, see --draft-devices":
        "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft V",
}  # fmt: skip
"""Options that change no result: a note says why they do nothing."""

_REFUSED: Final = {
    "models are not downloaded; download the file, and give its path as MODEL":
        "-hf -hfr --hf-repo V, -hff --hf-file V, -hft --hf-token V, -mu --model-url V, "
        "-dr --docker-repo V, -cl --cache-list, --mtp, --dflash, --eagle3, --embd-gemma-default, "
        "--fim-qwen-1.5b-default, --fim-qwen-3b-default, --fim-qwen-7b-default, "
        "--fim-qwen-7b-spec, --fim-qwen-14b-spec, --fim-qwen-30b-default, --gpt-oss-20b-default, "
        "--gpt-oss-120b-default, --vision-gemma-4b-default, --vision-gemma-12b-default",
    "use 'ggsched devices'": "--list-devices",
    "use 'ggsched --version'": "--version, --license",
    "see docs/how-to/complete-in-a-shell.md": "--completion-bash",
    "the first of --devices has priority; put that GPU first": "-mg --main-gpu V = 0",
    "devices of a Ray cluster are named in --devices, as ray://NODE/cuda:0": "--rpc -rpc V",
    "one model runs one sequence here; 'ggsched bench -npl N' measures several":
        "-np --parallel V = 1 -1, -ns --sequences V = 1, "
        "-kvu --kv-unified, -no-kvu --no-kv-unified, --kv-unified-per-slot V",
    "give the context itself, as -c N": "-fitc --fit-ctx V",
    "use 'ggsched plan --memory'": "-fitp --fit-print W:on = off",
    "name the tensors, as in -ot 'blk[.][0-3][.]ffn_(up|down|gate)[.]=cpu:0'":
        "-ncffn --n-cpu-ffn V = 0",
    "change the file's key: --override-kv ARCH.rope.scaling.type=str:VALUE":
        "--rope-scaling V",
    "change the file's key: --override-kv ARCH.rope.scaling.factor=float:VALUE":
        "--rope-scale V = 1, --rope-freq-scale V = 1",
    "change the file's key: --override-kv ARCH.rope.freq_base=float:VALUE": "--rope-freq-base V",
    "change the file's keys ARCH.rope.scaling.* with --override-kv":
        "--yarn-orig-ctx V = 0, --yarn-ext-factor V = -1, --yarn-attn-factor V = -1 1, "
        "--yarn-beta-slow V = -1, --yarn-beta-fast V = -1",
    "groups of positions (self-extend) are not implemented; use a smaller -c":
        "-gan --grp-attn-n V = 1, -gaw --grp-attn-w V",
    "values of weights are not examined; --logits shows what comes out": "--check-tensors",
    "adapters and control vectors are not implemented; merge them into the model file":
        "--lora V, --lora-scaled V, --control-vector V, --control-vector-scaled V, "
        "--control-vector-layer-range V V, --lora-init-without-apply",
    "not implemented; samplers are --temp, --top-k, --top-p, --min-p, --repeat-penalty":
        "--samplers V, --sampler-seq --sampling-seq V, --top-nsigma --top-n-sigma V = -1, "
        "--xtc-probability V = 0, --xtc-threshold V, --typical --typical-p V = 1, "
        "--presence-penalty V = 0, --frequency-penalty V = 0, --dry-multiplier V = 0, "
        "--dry-base V, --dry-allowed-length V, --dry-penalty-last-n V, --dry-sequence-breaker V, "
        "--adaptive-target V = -1, --adaptive-decay V, --dynatemp-range V = 0, --dynatemp-exp V, "
        "--mirostat V = 0, --mirostat-lr V, --mirostat-ent V",
    "single logits cannot be changed; --ignore-eos bans the model's end tokens":
        "-l --logit-bias V",
    "text is not held to a grammar": "--grammar V, --grammar-file V, -j --json-schema V, "
        "-jf --json-schema-file V",
    "give the text itself: -sys \"$(cat FILE)\"": "-sysf --system-prompt-file V",
    "give a text file, as -f FILE": "-bf --binary-file V, --in-file V",
    "prompts are not kept in files; /save FILE in --chat keeps a conversation":
        "--prompt-cache V, --prompt-cache-all, --prompt-cache-ro, --slot-save-path V",
    "use --chat, which reads lines until the end of stdin":
        "-i --interactive, -if --interactive-first",
    "a line that ends with a backslash goes on with the next, see /help in --chat":
        "-mli --multiline-input",
    "what stands around a question is the chat template's matter":
        "--in-prefix-bos, --in-prefix V, --in-suffix V, --spm-infill, --prefill-assistant",
    "templates are Jinja: --override-kv tokenizer.chat_template=str:TEMPLATE":
        "--chat-template V, --chat-template-file V, --chat-template-kwargs V, --no-jinja",
    "the text of an answer is not divided into thoughts and others":
        "--reasoning-format V = none, -rea --reasoning W:on = auto, --reasoning-effort V, "
        "--reasoning-budget V = -1, --reasoning-budget-message V, "
        "--reasoning-preserve --no-reasoning-preserve, --skip-chat-parsing",
    "--json lists the tokens of prompt and text":
        "--verbose-prompt, -sp --special, -ptc --print-token-count V = -1",
    "the prompt is not written": "--display-prompt",
    "redirect stdout or stderr: > FILE, 2> FILE":
        "-o --output-file V, -oe --output-err V, --output V, --log-file V, --log-prompts-dir V",
    "set GGSCHED_DEBUG=1 to 4": "-v --verbose --log-verbose",
    "tests follow each other at once": "--delay V = 0",
    "use a context of that many tokens, as -c N": "--ppl-stride V = 0",
    "shorten the text": "--chunks V = -1, --chunk --from-chunk V = 0",
    "only perplexity is measured":
        "--hellaswag, --hellaswag-tasks V, --winogrande, --winogrande-tasks V, --multiple-choice, "
        "--multiple-choice-tasks V, --kl-divergence, --save-all-logits --kl-divergence-base V, "
        "--ppl-output-type V = 0",
    "draft models have no such option here, see -md and --draft-max; leave it out":
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft V, --spec-draft-threads -td --threads-draft V, "
        "--spec-draft-threads-batch -tbd --threads-batch-draft V, "
        "--spec-draft-cpu-mask -Cd --cpu-mask-draft V, "
        "--spec-draft-cpu-range -Crd --cpu-range-draft V, "
        "--spec-draft-cpu-strict --cpu-strict-draft V, --spec-draft-prio --prio-draft V, "
        "--spec-draft-poll --poll-draft V, --spec-draft-cpu-mask-batch -Cbd "
        "--cpu-mask-batch-draft V, --spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft V, "
        "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft V, "
        "--spec-draft-prio-batch --prio-batch-draft V, "
        "--spec-draft-poll-batch --poll-batch-draft V, "
        "--spec-draft-type-k -ctkd --cache-type-k-draft V, "
        "--spec-draft-type-v -ctvd --cache-type-v-draft V, "
        "--spec-draft-override-tensor -otd --override-tensor-draft V, "
        "--spec-draft-cpu-moe -cmoed --cpu-moe-draft, "
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft V, "
        "--spec-synth-len V, --spec-synth-rates V, --spec-draft-p-split --draft-p-split V, "
        "--spec-draft-backend-sampling --no-spec-draft-backend-sampling, "
        "--spec-ngram-mod-n-min V, "
        "--spec-ngram-mod-n-max V, --spec-ngram-mod-n-match V, --spec-ngram-simple-size-n V, "
        "--spec-ngram-simple-size-m V, --spec-ngram-simple-min-hits V, "
        "--spec-ngram-map-k-size-n V, --spec-ngram-map-k-size-m V, --spec-ngram-map-k-min-hits V, "
        "--spec-ngram-map-k4v-size-n V, --spec-ngram-map-k4v-size-m V, "
        "--spec-ngram-map-k4v-min-hits V, --spec-ngram-size-n V, --spec-ngram-size-m V, "
        "--spec-ngram-min-hits V, --spec-default, "
        "-lcs --lookup-cache-static V, -lcd --lookup-cache-dynamic V",
    "models of images, sound and speech are not supported; give a text model":
        "-mm --mmproj V, -mmu --mmproj-url V, --mmproj-auto --no-mmproj --no-mmproj-auto, "
        "--mmproj-offload --no-mmproj-offload, -mmdev --mmproj-device V, "
        "--image --audio --video V, --image-min-tokens V, --image-max-tokens V, "
        "--mtmd-batch-max-tokens V, --video-fps V, --video-timestamp-interval V, "
        "--video-ffmpeg-dir V, --tts-lang V, --tts-speaker-file V, "
        "-hfv -hfrv --hf-repo-v V, -hffv --hf-file-v V, --diffusion-steps V, --diffusion-visual, "
        "--diffusion-eps V, --diffusion-algorithm V, --diffusion-alg-temp V, "
        "--diffusion-block-length V, --diffusion-cfg-scale V, --diffusion-add-gumbel-noise V",
    "embeddings are not computed; --logits writes what the model computes":
        "--pooling V, --attention V = causal, --embd-normalize V, --embd-output-format V, "
        "--embd-separator V, --cls-separator V, --embedding --embeddings W:1 = 0, "
        "-embd W:1 = 0, --rerank --reranking",
    "there is no server; the Python class Session serves several sequences":
        "--server-base V, --host V, --port V, --reuse-port, --path V, --cors-origins V, "
        "--cors-methods V, --cors-headers V, --cors-credentials --no-cors-credentials, "
        "--api-prefix V, --ui-config --webui-config V, --ui-config-file --webui-config-file V, "
        "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy, --tools V, "
        "--tools-runtime V, --mcp-servers-config V, --mcp-servers-json V, -ag --agent, "
        "--ui --webui --no-ui --no-webui, --api-key V, --api-key-file V, --ssl-key-file V, "
        "--ssl-cert-file V, -to --timeout V, --sse-ping-interval V, --threads-http V, "
        "--no-cache-prompt, --cache-reuse V, --metrics, --props, --slots --no-slots, "
        "--media-path V, --models-dir V, --models-preset V, --models-max V, "
        "--models-autoload --no-models-autoload, -sps --slot-prompt-similarity V, "
        "--sleep-idle-seconds V, -a --alias V, --tags V, "
        "-ctxcp --ctx-checkpoints --swa-checkpoints V, -cms --checkpoint-min-step V, "
        "-cram --cache-ram V, --cache-idle-slots --no-cache-idle-slots",
    "it belongs to a tool of llama.cpp that has no counterpart here":
        "--context-file V, --chunk-size V, --chunk-separator V, --junk V, --pos V, "
        "-ofreq --output-frequency V, --output-format V, --save-frequency V, --process-output, "
        "--ppl --no-ppl, --show-statistics, --parse-special, --ids, --stdin, --no-bos, "
        "--no-parse-special, --show-count, -pps, -tgs, -npp V, -ntg V, "
        "--positive-file V, --negative-file V, --pca-batch V, --pca-iter V, --method V, "
        "-lr --learning-rate V, -lr-min --learning-rate-min V, "
        "-decay-epochs --learning-rate-decay-epochs V, -wd --weight-decay V, "
        "-val-split --val-split V, -epochs --epochs V, -opt --optimizer V, --check, "
        "--save-logits, --logits-output-dir V, --tensor-filter V",
}  # fmt: skip
"""Options that cannot mean the same; an error says what to do instead."""


@cache
def llama_cpp_options() -> dict[str, Foreign]:
    """Return the options by each of their names."""
    means = {spec: ("means", text) for spec, text in _MEANS.items()}
    ignored = {spec: ("ignored", reason) for reason, spec in _IGNORED.items()}
    refused = {spec: ("refused", reason) for reason, spec in _REFUSED.items()}
    found: dict[str, Foreign] = {}
    for specs, (kind, text) in (refused | ignored | means).items():
        for names, option in _read(specs, kind, text):
            found |= dict.fromkeys(names, option)
    return found


def _read(specs: str, kind: str, text: str) -> Iterator[tuple[list[str], Foreign]]:
    for spec in specs.split(", "):
        head, _, same = spec.partition(" = ")
        words = head.split()
        names = [word for word in words if word.startswith("-")]
        values = words[len(names) :]
        is_word = bool(values) and values[0][0] == "W"
        word = (values[0].partition(":")[2] or "on") if is_word else None
        yield names, Foreign(kind, text, len(values), word, tuple(same.split()))
