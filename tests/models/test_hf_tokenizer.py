"""Folders of Hugging Face encode text as the ``tokenizers`` library does with their files."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from ggsched.errors import ModelError, UsageError
from ggsched_llm.bpe import PRE_TOKENIZERS, byte_letters
from ggsched_llm.chat import ChatTemplate, Message
from ggsched_llm.chat_tokens import conversation_ids
from ggsched_llm.hf_tokenizer import tokenizer_keys
from ggsched_llm.tokenizer import Tokenizer
from ggsched_llm.vocab import read_vocab
from tests.models.vocabularies import BPE_META, PREFIX, vocab_of

WORDS = [
    "hello",
    " world",
    "12",
    "1234",
    "don't",
    "I'VE",
    "\n",
    "\r\n",
    "  ",
    " ",
    "\t",
    "é",
    "e\u0301",
]
WORDS += [
    "ﬁ",
    "你好",
    "🙂",
    "HelloWorld",
    "A",
    ".",
    "...",
    "<|user|>",
    "<|end|>",
    "<think>",
    "<|",
    "x",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
MERGES = ["he", "ll", "hell", "hello", "12", "34", "or", "wor", "ld", "world", "on", "do"]
FLAGS = st.fixed_dictionaries({"lstrip": st.booleans(), "rstrip": st.booleans()})
NORMALIZERS = [
    None,
    normalizers.NFC(),
    normalizers.NFKC(),
    normalizers.Lowercase(),
    normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(name):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[name]]
    return pre_tokenizers.Sequence([*steps, BYTES])


SPLITS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "with a space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "smollm2": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    ),
    **{name: split(name) for name in ("llama-bpe", "qwen2", "deepseek-v3", "tekken")},
}


def chain(words, letters):
    """Return a vocabulary and merges that make each word from the left."""
    ids = {letter: i for i, letter in enumerate(letters)}
    merges = {}
    for word in words:
        for left, right in pairwise([word[:i] for i in range(1, len(word) + 1)]):
            if right not in ids:
                ids[right] = len(ids)
                merges[left, right[len(left) :]] = None
    return ids, [*merges]


def byte_level(normalizer, pre):
    ids, merges = chain(MERGES, sorted(byte_letters()))
    library = Library(models.BPE(ids, merges))
    library.pre_tokenizer, library.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    return library


def sentencepiece(scheme):
    """Return the tokenizer of a Llama 2; ``scheme`` None is that of its first conversion."""
    letters = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *"▁abcdehlnortw1234."]
    ids, merges = chain([*MERGES, "▁world", "▁hello"], letters)
    library = Library(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme is None:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        library.normalizer = normalizers.Sequence(steps)
    else:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    if scheme != "never":
        parts.append(decoders.Strip(" ", 1, 0))
    library.decoder = decoders.Sequence(parts)
    return library


LIBRARIES = st.one_of(
    st.builds(byte_level, st.sampled_from(NORMALIZERS), st.sampled_from([*SPLITS.values()])),
    st.builds(sentencepiece, st.sampled_from([None, "always", "first", "never"])),
)


@st.composite
def tokenizer_files(draw):
    """Draw the library's tokenizer, with added tokens and with ids around a text."""
    library = draw(LIBRARIES)
    for text in ("<s>", "</s>", "<|user|>", "<|end|>"):
        token = AddedToken(text, special=True, normalized=False, **draw(FLAGS))
        library.add_special_tokens([token])
    # A normaliser that puts a space in front would do so in the text of the token too.
    normalized = library.token_to_id("<0x00>") is None and draw(st.booleans())
    library.add_tokens([AddedToken("<think>", normalized=normalized, **draw(FLAGS))])
    before, behind = draw(st.sampled_from(["<s> ", ""])), draw(st.sampled_from([" </s>", ""]))
    if before or behind:
        ids = [(text, library.token_to_id(text)) for text in ("<s>", "</s>")]
        template = processors.TemplateProcessing(f"{before}$A{behind}", None, ids)
        steps = [processors.ByteLevel(trim_offsets=True), template]
        is_nested = draw(st.booleans())
        library.post_processor = processors.Sequence(steps) if is_nested else template
    return library


def opened(folder, library, config=None, settings=None):
    """Return our tokenizer of a folder with the library's file."""
    text = library if isinstance(library, str) else library.to_str()
    (folder / "tokenizer.json").write_text(text)
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    keys = tokenizer_keys(str(folder), config or {})
    return Tokenizer(read_vocab(keys, str(folder)), str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@given(library=tokenizer_files(), texts=st.lists(TEXTS, min_size=3, max_size=3))
@settings(max_examples=40)
def test_ids_are_those_of_the_library(folder, library, texts):
    ours = opened(folder, library)
    for text in texts:
        wanted = library.encode(text).ids
        assert ours.encode(text) == wanted
        plain = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, bos=False) == [*plain, *ours.vocab.suffix]
        assert ours.decode(plain) == library.decode(plain)
        assert ours.decode(plain, special=True) == library.decode(plain, skip_special_tokens=False)
        library.encode_special_tokens = True
        assert ours.encode(text, parse_special=False) == library.encode(text).ids
        library.encode_special_tokens = False


@given(library=tokenizer_files(), content=TEXTS)
@settings(max_examples=25)
def test_control_tokens_in_a_message_are_text(folder, library, content):
    ours = opened(folder, library, settings={"bos_token": "<s>"})
    template = ChatTemplate("<|user|>{{ messages[0].content }}<|end|>", {}, "m")
    user, end = map(library.token_to_id, ("<|user|>", "<|end|>"))
    found = conversation_ids(template, ours, [Message("user", content)])
    assert found.count(user) == found.count(end) == 1
    prefix, suffix = ours.vocab.prefix, ours.vocab.suffix
    assert found[: len(prefix) + 1] == [*prefix, user]
    assert found[len(found) - len(suffix) - 1 :] == [end, *suffix]
    parsed = conversation_ids(template, ours, [Message("user", content)], parse_special=True)
    assert parsed == library.encode(f"<|user|>{content}<|end|>").ids
    if not any(token in content for token in ("<|user|>", "<|end|>")):
        assert found == parsed


@pytest.mark.parametrize("text", ["a<|end|>b", "<|end|>", "<|user|><|end|>", "x <|user|>"])
def test_text_of_control_tokens_is_encoded_as_text(folder, text):
    library = byte_level(None, SPLITS["qwen2"])
    library.add_special_tokens(["<|user|>", "<|end|>"])
    ours = opened(folder, library, settings={})
    template = ChatTemplate("<|user|>{{ messages[0].content }}<|end|>", {}, "m")
    user, end = map(library.token_to_id, ("<|user|>", "<|end|>"))
    library.encode_special_tokens = True
    wanted = [user, *library.encode(text).ids, end]
    assert conversation_ids(template, ours, [Message("user", text)]) == wanted


def test_tokens_that_end_a_text_are_control_tokens_though_the_file_denies_it(folder):
    library = byte_level(None, SPLITS["qwen2"])
    library.add_tokens(["<|im_end|>", "<think>"])
    ours = opened(folder, library, settings={})
    template = ChatTemplate("{{ messages[0].content }}<|im_end|>", {}, "m")
    end, think = map(library.token_to_id, ("<|im_end|>", "<think>"))
    found = conversation_ids(template, ours, [Message("user", "a<|im_end|><think>")])
    assert (found.count(end), found.count(think), found[-1]) == (1, 1, end)
    assert ours.decode(found) == "a<|im_end|><think>"


@pytest.mark.parametrize(("scheme", "behind"), [("first", "never"), ("always", "always")])
def test_a_message_is_not_the_beginning_of_a_text(folder, scheme, behind):
    """Where only the beginning of a text gets a space, a message behind a token gets none."""
    library, other = sentencepiece(scheme), sentencepiece(behind)
    for one in (library, other):
        one.add_special_tokens([AddedToken("<|user|>", normalized=False)])
    other.encode_special_tokens = True
    ours = opened(folder, library, settings={})
    template = ChatTemplate("hello<|user|>{{ messages[0].content }}", {}, "m")
    front, user = library.encode("hello").ids, library.token_to_id("<|user|>")
    for text in ("ab", "ab<|user|>"):
        wanted = [*front, user, *other.encode(text).ids]
        assert conversation_ids(template, ours, [Message("user", text)]) == wanted


@given(content=TEXTS)
def test_control_tokens_in_a_message_are_text_of_gguf_files_too(content):
    ours = Tokenizer(vocab_of(BPE_META), "m.gguf")
    template = ChatTemplate("<|end|>{{ messages[0].content }}<|end|>", {}, "m")
    found = conversation_ids(template, ours, [Message("user", content)])
    end = BPE_META[PREFIX + "tokens"].index("<|end|>")
    assert found == [end, *ours.encode(content, bos=False, parse_special=False), end]


def test_a_message_that_is_not_text():
    ours = Tokenizer(vocab_of(BPE_META), "m.gguf")
    odd = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    template = ChatTemplate("{{ messages[0].content }}", {}, "m")
    found = conversation_ids(template, ours, [Message("user", odd[1:])])
    assert ours.decode(found) == odd[1:]
    with pytest.raises(UsageError, match="the conversation is not text"):
        conversation_ids(template, ours, [Message("user", odd)])


def test_roles_and_ends_of_text(folder):
    library = byte_level(None, SPLITS["gpt-2"])
    library.add_special_tokens(["<s>", "</s>", "<|im_end|>", "<|eos|>", "<|other|>"])
    of = library.token_to_id
    config = {"bos_token_id": 5, "eos_token_id": [of("<|eos|>"), of("</s>")]}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": of("<|other|>")}))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    vocab = opened(folder, library, config, settings).vocab
    assert vocab.special == {"bos": of("<s>"), "eos": of("<|im_end|>")}
    names = ("</s>", "<|im_end|>", "<|eos|>", "<|other|>")
    assert vocab.stop_ids() == {of(name) for name in names}
    (folder / "generation_config.json").unlink()
    vocab = opened(folder, library, config, {}).vocab
    assert vocab.special == {"bos": 5, "eos": of("<|eos|>")}


def test_templates(tmp_path):
    named = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    (tmp_path / "tokenizer.json").write_text(byte_level(None, SPLITS["gpt-2"]).to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert tokenizer_keys(str(tmp_path), {})["tokenizer.chat_template"] == "b"
    (tmp_path / "chat_template.jinja").write_text("c")
    assert tokenizer_keys(str(tmp_path), {})["tokenizer.chat_template"] == "c"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("decoder", None),
        ("decoder", {"type": "WordPiece", "prefix": "##", "cleanup": True}),
        ("model", {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}),
        ("post_processor", {"type": "Martian"}),
    ],
)
def test_other_kinds_are_refused_when_text_is_encoded(tmp_path, part, value):
    content = {**json.loads(byte_level(None, SPLITS["gpt-2"]).to_str()), part: value}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    keys = tokenizer_keys(str(tmp_path), {})
    tokenizer = Tokenizer(read_vocab(keys, "m"), "m", keys[PREFIX + "model"])
    with pytest.raises(ModelError, match=r"tokenizer.json of another kind' is not supported"):
        tokenizer.encode("x")


def test_what_the_library_refuses(tmp_path):
    content = json.loads(byte_level(None, SPLITS["gpt-2"]).to_str())
    content["normalizer"] = {"type": "Martian"}
    tokenizer = opened(tmp_path, json.dumps(content))
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        tokenizer.encode("x")
