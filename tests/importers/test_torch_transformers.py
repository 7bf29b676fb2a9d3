"""Models of the library transformers, with random weights."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.export import Dim  # noqa: E402

from tests.importers.torch_programs import compare  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


class Plain(torch.nn.Module):
    """A model with its inputs in order and its outputs in a tuple."""

    def __init__(self, model, *names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given):
        return self.model(**dict(zip(self.names, given, strict=True))).to_tuple()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()


def ids(*shape):
    return torch.randint(1, 50, shape)


def test_bert_with_padding_and_any_shape():
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=32, **SMALL)
    module = Plain(transformers.BertModel(config), "input_ids", "attention_mask")

    def given(batch, length):
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, length - 2 :] = 0
        return ids(batch, length), mask

    extents = {0: Dim("n", max=8), 1: Dim("length", max=32)}
    compare(module, given(2, 5), more=[given(3, 7)], dynamic_shapes=((extents, extents),))


def test_gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=32, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    module = Plain(transformers.GPT2LMHeadModel(config), "input_ids")
    model = compare(
        module, (ids(2, 5),), more=[(ids(2, 9),)],
        dynamic_shapes=(({1: Dim("length", max=32)},),),
    )  # fmt: skip
    assert len(model.outputs) == 1


def test_vit():
    config = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)
    compare(Plain(transformers.ViTModel(config), "pixel_values"), (torch.randn(2, 3, 32, 32),))
