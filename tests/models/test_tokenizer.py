"""Text to ids and back."""

import logging
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import ModelError, UsageError
from ggsched_llm.bpe import PRE_TOKENIZERS, byte_letters
from ggsched_llm.chat import ChatTemplate, Message
from ggsched_llm.chat_tokens import conversation_ids
from ggsched_llm.load import load_model
from ggsched_llm.tokenizer import Tokenizer
from ggsched_llm.vocab import STOP_NAMES, TokenType
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.vocabularies import (
    BPE_META,
    BYTE,
    CONTROL,
    DEMO_META,
    MERGED_DEMO_META,
    NORMAL,
    PREFIX,
    SPM_META,
    USER_DEFINED,
    plain,
    vocab_of,
)

BPE = Tokenizer(vocab_of(BPE_META), "m.gguf")
SPM = Tokenizer(vocab_of(SPM_META), "m.gguf")
SPM_TOKENS = SPM_META[PREFIX + "tokens"]


def pieces(tokenizer, text, **how):
    return [tokenizer.vocab.tokens[i] for i in tokenizer.encode(text, **how)]


# --- byte-level BPE ------------------------------------------------------------------------


def test_bpe_merges_in_order_of_rank():
    assert pieces(BPE, "hello world") == ["hello", "Ġworld"]
    assert pieces(BPE, "hell 12345") == ["hell", "Ġ", "123", "4", "5"]
    assert pieces(BPE, "hhello") == ["h", "hello"]
    assert pieces(BPE, "é") == ["Ã", "©"]


def test_bpe_special_tokens():
    assert pieces(BPE, "hello<|end|>") == ["hello", "<|end|>"]
    assert "<|end|>" not in pieces(BPE, "hello<|end|>", parse_special=False)
    assert "<|user|>" in pieces(BPE, "<|user|>hello", parse_special=False)
    assert pieces(BPE, "hello", bos=True)[0] == "<|eot|>"
    ids = BPE.encode("hello<|end|>")
    assert BPE.decode(ids) == "hello"
    assert BPE.decode(ids, special=True) == "hello<|end|>"


@given(st.text())
def test_bpe_round_trip(text):
    assert BPE.decode(BPE.encode(text, parse_special=False)) == text


@given(st.text())
def test_stream_gives_the_same_text(text):
    stream = BPE.stream()
    shown = [stream.push(i) for i in BPE.encode(text, parse_special=False)]
    assert "".join([*shown, stream.finish()]) == text
    assert all("\ufffd" not in s for s in shown) or "\ufffd" in text


def test_stream_holds_back_half_a_character():
    ids = BPE.encode("é")
    stream = BPE.stream()
    assert [stream.push(i) for i in ids] == ["", "é"]
    stream = BPE.stream()
    assert stream.push(ids[0]) == ""
    assert stream.finish() == "\ufffd"


# How the tokenizers of these models are known to cut text.
SPLITS = [
    ("gpt-2", "I've 12345  cats", ["I", "'ve", " 12345", " ", " cats"]),
    ("llama-bpe", "I'VE 12345  cats", ["I", "'VE", " ", "123", "45", " ", " cats"]),
    ("qwen2", "a 123\n\n b", ["a", " ", "1", "2", "3", "\n\n", " b"]),
    ("gpt-4o", "HelloWorld don't 1234", ["Hello", "World", " don't", " ", "123", "4"]),
    ("deepseek-v3", "don't 1234 你好x", ["don", "'t", " ", "123", "4", " ", "你好", "x"]),
    ("deepseek-coder", "a, b\n12", ["a", ",", " b", "\n", "1", "2"]),
    ("deepseek-llm", "I've 123 你好\n", ["I", "'", "ve", " ", "123", " ", "你好", "\n"]),
    ("olmo", "I've 12345  cats", ["I", "'ve", " 12345", " ", " cats"]),
    ("qwen35", "cafe\u0301 12", ["cafe\u0301", " ", "1", "2"]),
    ("tekken", "HelloWorld don't 12", ["Hello", "World", " don", "'t", " ", "1", "2"]),
    ("smollm", "I've 123  cats\n", ["I", "'ve", " ", "1", "2", "3", " ", " cats", "\n"]),
    ("falcon3", "I'VE 12345", ["I", "'VE", " ", "123", "45"]),
    ("seed-coder", "a+\n123", ["a", "+", "\n", "1", "2", "3"]),
    ("bailingmoe", "I'll\n\n12", ["I", "'ll", "\n\n", "1", "2"]),
    ("falcon", "a`b 12345", ["a", "`", "b", " ", "123", "45"]),
    ("bloom", "one, two(3)", ["one", ",", " two", "(", "3", ")"]),
    ("viking", "one 12", ["one", " ", "1", "2"]),
    ("stablelm2", "a 12", ["a", " ", "1", "2"]),
    ("glm4", "I'VE 1234", ["I", "'VE", " ", "123", "4"]),
    ("default", "12345 + 6=", ["123", "45", " ", "+", " ", "6", "="]),
]


@pytest.mark.parametrize(("pre", "text", "wanted"), SPLITS)
def test_pre_tokenizers(pre, text, wanted):
    from tokenizers import Regex, pre_tokenizers

    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[pre]]
    found = pre_tokenizers.Sequence(steps).pre_tokenize_str(text)
    assert [piece for piece, _ in found] == wanted


@pytest.mark.parametrize("pre", ["martian", "kimi-k2", "superbpe", "youtu"])
def test_unknown_pre_tokenizer_is_refused(pre):
    tokenizer = Tokenizer(vocab_of(BPE_META, pre=pre), "m.gguf")
    with pytest.raises(ModelError, match=f"key tokenizer.ggml.pre: pre-tokenizer '{pre}' is not"):
        tokenizer.encode("hello")
    assert tokenizer.decode([0]) == "!"


def test_missing_pre_tokenizer_warns(caplog):
    tokenizer = Tokenizer(vocab_of(BPE_META, pre=None), "m.gguf")
    with caplog.at_level(logging.WARNING):
        assert pieces(tokenizer, "hello") == ["hello"]
    assert "no key tokenizer.ggml.pre" in caplog.text


def test_byte_letters_are_a_bijection():
    assert sorted(byte_letters().values()) == list(range(256))


@pytest.mark.parametrize("meta", [DEMO_META, MERGED_DEMO_META])
def test_demo_vocabulary(tmp_path, meta):
    vocab = len(meta[PREFIX + "tokens"])
    path = tiny_gguf(tmp_path / "m.gguf", meta=meta, vocab=vocab)
    tokenizer = load_model(path).tokenizer
    assert tokenizer.encode("417+385=") == [4, 1, 7, 10, 3, 8, 5, 11]
    assert tokenizer.decode([8, 0, 2, 12]) == "802"
    assert tokenizer.decode([8, 0, 2, 12], special=True) == "802<|end|>"
    assert tokenizer.encode("1<|end|>") == [1, 12]
    assert tokenizer.stop_ids == {12}
    with pytest.raises(ModelError, match="cannot write ' ', 'x'"):
        tokenizer.encode("1 + x")


# --- SentencePiece ---------------------------------------------------------------------------


def test_spm_merges_by_score():
    assert pieces(SPM, "hello world") == ["<s>", "▁hello", "▁world"]
    # "he", "ll" and then "hell" come first, though "▁hello" would cover all.
    assert pieces(SPM, "aaaa", bos=False) == ["▁", "aa", "aa"]
    assert pieces(SPM, "ü", bos=False) == ["▁", "<0xC3>", "<0xBC>"]
    assert pieces(SPM, "hello</s>hello", bos=False) == ["▁hello", "</s>", "▁hello"]


def test_spm_without_prefix_and_with_eos():
    tokenizer = Tokenizer(vocab_of(SPM_META, add_space_prefix=False, add_eos_token=True), "m")
    assert pieces(tokenizer, "hello") == ["<s>", "hello", "</s>"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_spm_without_bytes_takes_the_unknown_token():
    types = [NORMAL if t == BYTE else t for t in SPM_META[PREFIX + "token_type"]]
    tokenizer = Tokenizer(vocab_of(SPM_META, token_type=types), "m.gguf")
    assert pieces(tokenizer, "üa", bos=False) == ["▁", "<unk>", "a"]
    silent = Tokenizer(vocab_of(SPM_META, token_type=types, unknown_token_id=None), "m.gguf")
    with pytest.raises(ModelError, match="cannot write"):
        silent.encode("üa")


@given(st.text(st.sampled_from("abcehlordw12é ü\n")))
def test_spm_round_trip(text):
    assert SPM.decode(SPM.encode(text)) == text


@given(st.text(st.sampled_from("abcehlordw12é ü▁")))
def test_spm_is_sentencepiece(text):
    reference = _sentencepiece()
    wanted = reference.encode(f" {text}") if text else []
    assert SPM.encode(text, bos=False) == wanted


_REFERENCE = []


def _sentencepiece():
    """Return the library with our vocabulary, written in its own (protobuf) format."""
    sentencepiece = pytest.importorskip("sentencepiece")
    if _REFERENCE:
        return _REFERENCE[0]

    def varint(n):
        return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])

    def nested(number, raw):
        return varint(number << 3 | 2) + varint(len(raw)) + raw

    def number(field, value):
        return varint(field << 3) + varint(value)

    model = b""
    keys = ("tokens", "scores", "token_type")
    for text, score, kind in zip(*(SPM_META[PREFIX + k] for k in keys), strict=True):
        raw_score = varint(2 << 3 | 5) + struct.pack("<f", score)
        model += nested(1, nested(1, text.encode()) + raw_score + number(3, kind))
    model += nested(2, number(3, 2) + number(35, 1))  # BPE, with bytes
    model += nested(3, nested(1, b"identity") + number(3, 0) + number(4, 0) + number(5, 1))
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    _REFERENCE.append(processor)
    return processor


# --- vocabularies that contradict themselves ---------------------------------------------------


BAD = [
    (BPE_META, {"tokens": None}, "tokens: is missing"),
    (BPE_META, {"tokens": []}, "tokens: is empty"),
    (BPE_META, {"tokens": 7}, "tokens: is not an array"),
    (BPE_META, {"tokens": [1, 2]}, "tokens: is not an array of strings"),
    (BPE_META, {"token_type": [1, 2]}, "token_type: has 2 elements"),
    (BPE_META, {"token_type": 1}, "token_type: has no elements"),
    (SPM_META, {"token_type": [99] * len(SPM_TOKENS)}, "token_type: element 0 is 99"),
    (SPM_META, {"token_type": [BYTE] * len(SPM_TOKENS)}, "token_type: element 0 says byte"),
    (BPE_META, {"merges": ["a"]}, "merges: element 0 is 'a'"),
    (BPE_META, {"merges": ["a b", "a b c"]}, "merges: element 1"),
    (BPE_META, {"merges": [1]}, "merges: is not an array of strings"),
    (BPE_META, {"eos_token_id": 9999}, "eos_token_id: is 9999"),
    (BPE_META, {"bos_token_id": "x"}, "bos_token_id: is not an integer"),
    (BPE_META, {"add_bos_token": 1}, "add_bos_token: is not a truth value"),
    (SPM_META, {"scores": None}, "scores: is missing"),
    (SPM_META, {"scores": [0.0]}, "scores: has 1 elements"),
    (SPM_META, {"scores": [float("nan")] * len(SPM_TOKENS)}, "scores: element 0 is NaN"),
    (SPM_META, {"scores": [1] * len(SPM_TOKENS)}, "scores: is not an array of floating"),
    (SPM_META, {"model": 5}, "model: is not a string"),
    (SPM_META, {"rstrip_ids": [9999]}, "rstrip_ids: is not an array of ids"),
    (SPM_META, {"stop_ids": ["a"]}, "stop_ids: is not an array of ids"),
]


@pytest.mark.parametrize(("meta", "changes", "message"), BAD)
def test_bad_vocabulary(meta, changes, message):
    with pytest.raises(ModelError, match=message):
        vocab_of(meta, **changes)


def test_keys_that_nothing_reads_are_refused_unless_their_effect_is_known():
    """They were ignored; those of an architecture were refused already."""
    for key, value in (("normalizer", "nfc"), ("add_sep_token", True), ("eos_token_ids", (3,))):
        with pytest.raises(ModelError, match=f"key tokenizer.ggml.{key} is .*does not know it"):
            vocab_of(BPE_META, **{key: value})
    known = {"padding_token_id": 0, "add_sep_token": False, "precompiled_charsmap": (1, 2)}
    assert vocab_of(BPE_META, **known) == vocab_of(BPE_META)
    assert vocab_of(BPE_META, scores=(0.0,)) == vocab_of(BPE_META)


def test_merge_of_no_token():
    tokenizer = Tokenizer(vocab_of(BPE_META, merges=["h x"]), "m.gguf")
    with pytest.raises(ModelError, match="takes or makes 'hx': there is no such token"):
        tokenizer.encode("hx")


def test_number_of_tokens_is_that_of_the_embedding(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", meta=DEMO_META, vocab=14)
    with pytest.raises(ModelError, match=r"tokens: has 13 elements: token_embd.weight has 14"):
        load_model(path)


# --- no tokenizer --------------------------------------------------------------------------


def test_no_tokenizer():
    tokenizer = load_model(ORACLE / "llama-tiny-q8_0.gguf").tokenizer
    assert not tokenizer.has_text
    assert tokenizer.stop_ids == frozenset()
    for call in (lambda: tokenizer.encode("x"), lambda: tokenizer.decode([1]), tokenizer.stream):
        with pytest.raises(ModelError, match=r"has no tokenizer \(pass --tokens 1,2,3\)"):
            call()


def test_kind_that_is_not_supported(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", meta={PREFIX + "model": "t5"})
    with pytest.raises(ModelError, match="tokenizer 't5' is not supported"):
        load_model(path).tokenizer.encode("x")


def test_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModelError, match="pip install tokenizers"):
        Tokenizer(vocab_of(BPE_META), "m.gguf").encode("x")


def test_wrong_arguments():
    for token in (-1, len(BPE.vocab.tokens)):
        with pytest.raises(UsageError, match="no token"):
            BPE.decode([token])
    with pytest.raises(UsageError, match="Unicode"):
        BPE.encode("\ud800")


def test_stop_ids():
    assert {BPE.vocab.tokens[i] for i in BPE.stop_ids} == {"<|end|>"}
    assert SPM.stop_ids == {2}
    names = ["<|return|>", "<|call|>", "<|end|>"]
    types = [CONTROL] * 3
    meta = plain(DEMO_META) | {PREFIX + "tokens": names, PREFIX + "token_type": types}
    gpt_oss = vocab_of(meta, eos_token_id=0)
    assert gpt_oss.stop_ids() == {0, 1}


def ends_of(names, **keys):
    """Return the texts of tokens at which generation ends, of a vocabulary with these tokens."""
    tokens = ["a", "b", *names]
    meta = DEMO_META | {PREFIX + "tokens": tokens, PREFIX + "token_type": [NORMAL] * len(tokens)}
    vocab = vocab_of(meta, eos_token_id=0, **keys)
    return {tokens[i] for i in vocab.stop_ids()} - {"a"}, vocab


@pytest.mark.parametrize("name", sorted(STOP_NAMES))
def test_text_ends_at_tokens_of_these_names(name):
    found, vocab = ends_of([name])
    assert found == {name}
    assert vocab.types[2] is TokenType.CONTROL
    tokenizer = Tokenizer(vocab, "m.gguf")
    assert tokenizer.decode([1, 2]) == "b"


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], None),
        (["<|fim_middle|>", "<|im_start|>", "<|user|>", "<s>"], []),
        (["<|return|>", "<|call|>", "<|end|>"], ["<|return|>", "<|call|>"]),
        (["<|flush|>", "<|calls|>", "<|end|>"], ["<|flush|>", "<|calls|>"]),
        (["<|return|>", "<|end|>"], None),
        (["<|tool_response>", "</s>"], ["<|tool_response>"]),
        (["<|im_end|>", "</s>"], None),
        (["<REPO>", "<|repo_name|>"], ["<|repo_name|>"]),
    ],
)
def test_names_that_depend_on_each_other(names, wanted):
    assert ends_of(names)[0] == {*(names if wanted is None else wanted)}


def test_keys_of_tokens_that_end_a_text():
    assert ends_of(["x", "<|fim_pad|>"], fim_pad_token_id=2)[0] == {"x"}
    assert ends_of(["x", "y", "z"], eot_token_id=2, fim_sep_token_id=4)[0] == {"x", "z"}


def test_a_doubled_bos_is_warned_of(caplog):
    assert SPM.encode("<s>a") == [1, 1, *SPM.encode("a", bos=False)]
    assert caplog.text.count("the text begins with bos") == 1
    assert len(caplog.records) == 1
    caplog.clear()
    for text, bos in (("a", None), ("<s>a", False), ("<s><s>a", False)):
        assert SPM.encode(text, bos=bos)
    assert SPM.encode("<s>", parse_special=False)
    assert not caplog.records


@pytest.mark.parametrize(
    ("source", "content", "is_doubled"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "a", False),
        ("{{ bos_token }}{{ messages[0].content }}", "<s>a", True),
        ("{{ messages[0].content }}", "<s>a", False),
        ("{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", "a", True),
    ],
)
def test_a_doubled_bos_of_a_conversation_is_warned_of_once(caplog, source, content, is_doubled):
    template = ChatTemplate(source, {"bos_token": "<s>"}, "m.gguf")
    turns = [Message("user", content)]
    for _ in range(2):
        ids = conversation_ids(template, SPM, turns, parse_special=True)
        assert (ids[:2] == [1, 1]) is is_doubled
        turns += [Message("assistant", "b"), Message("user", "c")]
    assert caplog.text.count("the conversation begins with two bos") == is_doubled
    assert len(caplog.records) == is_doubled


PHI3_TOKENS = [*SPM_TOKENS, "<|user|>", "<|end|>", "<|endoftext|>", "<extra>"]
PHI3_META = SPM_META | {
    PREFIX + "tokens": PHI3_TOKENS,
    PREFIX + "token_type": [
        *SPM_META[PREFIX + "token_type"], CONTROL, CONTROL, CONTROL, USER_DEFINED,
    ],
    PREFIX + "scores": [*SPM_META[PREFIX + "scores"], 0.0, 0.0, 0.0, 0.0],
}  # fmt: skip
PHI3_CASES = [
    ("<|user|>\nhello", ["<|user|>", "▁hello"]),
    ("<|user|> \n\t hello <|end|>\n", ["<|user|>", "▁hello", "▁", "<|end|>"]),
    ("a</s>\na", ["▁", "a", "</s>", "▁", "a"]),
    ("<extra>  a", ["<extra>", "▁", "a"]),
    ("<|endoftext|>\na", ["<|endoftext|>", "▁", "<0x0A>", "a"]),
    ("<s>\na", ["<s>", "▁", "<0x0A>", "a"]),
    ("a\na", ["▁", "a", "<0x0A>", "a"]),
]


@pytest.mark.parametrize(("text", "wanted"), PHI3_CASES)
@pytest.mark.parametrize(
    "general", [{"architecture": "phi3"}, {"name": "Phi-3-mini"}, {"name": "my phi3 tune"}]
)
def test_special_tokens_of_phi_3_swallow_the_space_behind_them(general, text, wanted):
    meta = PHI3_META | {f"general.{key}": value for key, value in general.items()}
    assert pieces(Tokenizer(vocab_of(meta), "m"), text, bos=False) == wanted


def test_special_tokens_of_others_swallow_nothing():
    for general in ({}, {"general.architecture": "llama", "general.name": "Llama 3"}):
        tokenizer = Tokenizer(vocab_of(PHI3_META | general), "m")
        found = pieces(tokenizer, "<|user|>\na", bos=False)
        assert found == ["<|user|>", "▁", "<0x0A>", "a"]


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken", "falcon3", "pixtral"])
def test_models_that_begin_with_bos(pre):
    meta = {k: v for k, v in BPE_META.items() if k != PREFIX + "add_bos_token"}
    assert vocab_of(meta, pre=pre).add_bos
    assert not vocab_of(meta, pre="smollm").add_bos


def test_pieces_that_are_tokens_are_not_split():
    """Without merges that make it, a whole piece is a token of some vocabularies only."""
    tokens = [*BPE_META[PREFIX + "tokens"], "abc"]
    types = [*BPE_META[PREFIX + "token_type"], NORMAL]
    for pre in ("tekken", "llama-bpe", "glm4", "qwen2", "chatglm-bpe"):
        vocab = vocab_of(BPE_META, tokens=tokens, token_type=types, pre=pre)
        wanted = ["a", "b", "c"] if pre in ("qwen2", "chatglm-bpe") else ["abc"]
        assert pieces(Tokenizer(vocab, "m.gguf"), "abc") == wanted


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(name):
    tokenizer = Tokenizer(vocab_of(BPE_META, pre=name), "m.gguf")
    for text in ("I've 1234  cats\n\n", "é你好 don't\r\n", "HelloWorld(3), ok."):
        assert tokenizer.decode(tokenizer.encode(text)) == text
