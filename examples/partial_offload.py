"""Partial offload of a GGUF model: some layers on an accelerator, the others on the CPU.

The accelerator is simulated, so this runs anywhere; replace it with "opencl:0" or "cuda:0", and the
model with your own. The options are those of llama.cpp: ``-ngl 2`` is ``n_gpu_layers=2``.
"""

from pathlib import Path

import ggsched
from ggsched.plan.stats import plan_stats
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions

MODEL = Path(ggsched.__file__).parent / "data" / "addition-moe.gguf"
DEVICES = ["sim:0", "cpu:0"]
PROMPT = "417+385="


def main():
    model = load_model(MODEL)
    prompt = model.tokenizer.encode(PROMPT)
    for layers in range(model.hparams.n_layer + 2):  # the output layer counts as one
        options = SessionOptions(n_ctx=64, offload=Offload(n_gpu_layers=layers))
        with Session(model, DEVICES, options) as session:
            tokens = session.generate(prompt, 8, stop=model.tokenizer.stop_ids)
            answer = model.tokenizer.decode(list(tokens))
            stats = plan_stats(session.last_plan)
            weights = session.scheduler.resident_nbytes("weight")
            kib = {name: f"{nbytes / 1024:.0f} KiB" for name, nbytes in sorted(weights.items())}
        print(f"-ngl {layers}: {PROMPT}{answer}  {stats.splits} splits, weights {kib}")


if __name__ == "__main__":
    main()
