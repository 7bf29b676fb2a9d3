"""Experts in host memory, computed on the accelerator: which rows were copied, and from where.

The accelerator is simulated, so this runs anywhere; replace it with "opencl:0" or "cuda:0", and the
model with another mixture-of-experts model. On the command line:

    ggsched run MODEL --devices opencl:0,cpu:0 --n-cpu-moe 3 --op-offload on --expert-cache 64KiB
"""

from pathlib import Path

import ggsched
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions
from ggsched_offload.offload import ExpertPolicy

MODEL = Path(ggsched.__file__).parent / "data" / "addition-moe.gguf"
DEVICES = ["sim:0", "cpu:0"]
PROMPT = "417+385="

POLICIES = {
    "computed where they are": ExpertPolicy("off"),
    "the rows that routers choose": ExpertPolicy("on"),
    "with a cache of 512 KiB": ExpertPolicy("on", cache_nbytes=512 << 10),
}


def main():
    model = load_model(MODEL)
    prompt = model.tokenizer.encode(PROMPT)
    n_layer = model.hparams.n_layer
    for name, policy in POLICIES.items():
        offload = Offload(n_cpu_moe=n_layer, experts=policy)
        with Session(model, DEVICES, SessionOptions(n_ctx=64, offload=offload)) as session:
            answer = model.tokenizer.decode(list(session.generate(prompt, 3)))
            ledger = session.scheduler.expert_ledger
            total = ledger.total
            cache = sum(session.scheduler.resident_nbytes("cache").values())
        print(f"{name}: {PROMPT}{answer}")
        print(f"  the host read ids {ledger.id_reads} times; {total.chosen_rows} rows chosen")
        print(f"  {total.uploaded_rows} copied ({total.uploaded_nbytes >> 10} KiB)")
        print(f"  {total.cached_rows} found in the cache of {cache >> 10} KiB")
        for weight, numbers in list(ledger.by_tensor().items())[:1]:
            print(f"  {weight}: {numbers}")


if __name__ == "__main__":
    main()
