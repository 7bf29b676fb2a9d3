"""Folders of Hugging Face have the logits that the transformers library computes of them."""

import json

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from tests.models.folder_models import KINDS, drawn, write_folder

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file

# In f32 the library's own logits of Gated DeltaNet are 1.3e-5 from those of float64.
LARGEST = {"qwen3_5_text": 4e-5}


def assert_close(folder, kind, recorded):
    options = SessionOptions(n_ctx=64, n_ubatch=7)
    with Session(load_model(folder), ["cpu:0"], options, settings=Settings()) as session:
        found = session.feed(recorded["tokens"].tolist(), all_logits=True)
    assert np.abs(found - recorded["logits"]).max() < LARGEST.get(kind, 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(tmp_path, kind):
    assert_close(tmp_path, kind, write_folder(tmp_path, kind))


def test_a_model_of_text_and_images_is_its_text(tmp_path):
    """Names and fields as in published folders; what sees images is left out."""
    recorded = write_folder(tmp_path, "qwen3_5_text")
    weights = load_file(tmp_path / "model.safetensors")
    named = {name.replace("model.", "model.language_model."): a for name, a in weights.items()}
    named["model.visual.patch_embed.proj.weight"] = np.ones((2, 2), np.float32)
    save_file(named, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    outer |= {"text_config": {**text, "architectures": None}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    assert_close(tmp_path, "qwen3_5_text", recorded)


@pytest.mark.parametrize("has_block", [True, False])
def test_blocks_that_predict_further_tokens_are_left_out(tmp_path, caplog, has_block):
    recorded = write_folder(tmp_path, "glm4_moe")
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if has_block:
        weights = load_file(tmp_path / "model.safetensors")
        last = {n: a for n, a in weights.items() if n.startswith("model.layers.2.")}
        weights |= {name.replace(".2.", ".3.", 1): a for name, a in last.items()}
        for name, shape in (("eh_proj", (64, 128)), ("embed_tokens", (64, 64)), ("enorm", (64,))):
            weights[f"model.layers.3.{name}.weight"] = drawn("", name, shape)
        save_file(weights, tmp_path / "model.safetensors")
    with caplog.at_level("INFO", "ggsched"):
        assert load_model(tmp_path).hparams.n_layer == 3
    said = [m for m in caplog.messages if "predict further tokens" in m]
    assert len(said) == has_block
    assert_close(tmp_path, "glm4_moe", recorded)
