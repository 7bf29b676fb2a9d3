"""The tokenizer of a folder of Hugging Face, as keys of GGUF files.

``tokenizer.json`` decides how text becomes ids: the ``tokenizers`` library reads it when text is
encoded for the first time. What is read here is what else is needed: the texts of tokens and how
their bytes are written, the ids around a text, which ids end a text.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ggsched.errors import ModelError
from ggsched.files.reading import json_object, read_json, read_text
from ggsched_llm.gguf_header import MetaValue
from ggsched_llm.spm import SPACE
from ggsched_llm.vocab import JSON_KEY, PREFIX, TokenType, byte_of

_FAR_APART: Final = 1 << 16
_ANOTHER_KIND: Final[Mapping[str, MetaValue]] = {PREFIX + "model": "tokenizer.json of another kind"}


def tokenizer_keys(folder: str, config: Mapping[str, Any]) -> dict[str, MetaValue]:
    """Return the keys of a folder's tokenizer; none if it has no ``tokenizer.json``.

    Args:
        config: Fields of ``config.json``.

    Raises:
        ModelError: a file is damaged.
    """
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        return {}
    text = read_text(path, error=ModelError)
    found = json_object(text, path, error=ModelError)
    settings = _optional(folder, "tokenizer_config.json")
    template = _template(folder, settings)
    model, added = found.get("model"), found.get("added_tokens") or []
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        return {**_ANOTHER_KIND, **template}
    try:
        ids = {int(i): str(token) for token, i in model["vocab"].items()}
        special = {int(t["id"]): bool(t["special"]) for t in added}
        strips = {
            side: tuple(int(t["id"]) for t in added if t.get(side)) for side in ("lstrip", "rstrip")
        }
        ids |= {int(t["id"]): str(t["content"]) for t in added}
        size = max(max(ids) + 1, int(config.get("vocab_size") or 0))
        "".join(ids.values()).encode()  # JSON may escape half a character
        around, style = _around(found.get("post_processor")), _style(found.get("decoder"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ModelError("the tokenizer is damaged", where=path, why=why) from error
    if size > 2 * len(ids) + _FAR_APART or min(ids) < 0:
        raise ModelError("the tokenizer has ids far apart", where=path)
    if around is None or style is None:
        return {**_ANOTHER_KIND, **template}
    prefix, suffix = around
    kind, strips_space = style
    types = [_type(i, ids, special, kind) for i in range(size)]
    keys: dict[str, MetaValue] = {
        "model": kind,
        "tokens": tuple(ids.get(i, f"[PAD{i}]") for i in range(size)),
        "token_type": tuple(map(int, types)),
        "add_space_prefix": strips_space,
        "prefix_ids": tuple(prefix),
        "suffix_ids": tuple(suffix),
        "lstrip_ids": strips["lstrip"],
        "rstrip_ids": strips["rstrip"],
        "stop_ids": _stops(folder, config, size),
    }
    id_of = {token: i for i, token in ids.items()}
    for role in ("bos", "eos"):
        named = settings.get(f"{role}_token")
        named = named.get("content") if isinstance(named, dict) else named
        said = next(iter(_id_list(config.get(f"{role}_token_id"))), None)
        token = id_of.get(named, said) if isinstance(named, str) else said
        if token is not None:
            keys[f"{role}_token_id"] = token
    keys["add_bos_token"] = bool(prefix) and prefix[0] == keys.get("bos_token_id")
    out: dict[str, MetaValue] = {f"{PREFIX}{key}": value for key, value in keys.items()}
    return {**out, JSON_KEY: text, **template}


def _optional(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    return read_json(path, error=ModelError) if os.path.exists(path) else {}


def _template(folder: str, settings: Mapping[str, Any]) -> dict[str, MetaValue]:
    """Return the chat template: a file of its own, or among the settings, alone or by name."""
    path = os.path.join(folder, "chat_template.jinja")
    found = settings.get("chat_template")
    if os.path.exists(path):
        found = read_text(path, error=ModelError)
    if isinstance(found, list):
        named = [t for t in found if isinstance(t, dict) and t.get("name") == "default"]
        found = named[0].get("template") if named else None
    return {"tokenizer.chat_template": found} if isinstance(found, str) else {}


def _type(i: int, ids: Mapping[int, str], special: Mapping[int, bool], kind: str) -> int:
    if i not in ids:
        return TokenType.UNUSED
    if i in special:
        return TokenType.CONTROL if special[i] else TokenType.USER_DEFINED
    return TokenType.BYTE if kind == "llama" and byte_of(ids[i]) is not None else TokenType.NORMAL


def _style(decoder: Any) -> tuple[str, bool] | None:
    """Return how tokens write bytes: the kind of vocabulary, and whether a text loses a space.

    None for a decoder that is neither byte-level nor SentencePiece's.
    """
    parts = decoder.get("decoders") if _type_of(decoder) == "Sequence" else [decoder]
    if not isinstance(parts, list) or not parts:
        return None
    strips = False
    for part in parts:
        match _type_of(part):
            case "ByteLevel" if len(parts) == 1:
                return "gpt2", False
            case "Replace" if part.get("pattern") == {"String": SPACE} and part["content"] == " ":
                pass
            case "Strip" if [part.get(k) for k in ("content", "start", "stop")] == [" ", 1, 0]:
                strips = True
            case "Metaspace" if part.get("replacement", SPACE) == SPACE:
                scheme = "always" if part.get("add_prefix_space", True) else "never"
                strips = part.get("prepend_scheme", scheme) != "never"
            case "ByteFallback" | "Fuse":
                pass
            case _:
                return None
    return "llama", strips


def _type_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _around(processor: Any) -> tuple[list[int], list[int]] | None:
    """Return the ids in front of a text and behind it; None if something else is done to it."""
    match _type_of(processor):
        case "" | "ByteLevel":
            return [], []
        case "RobertaProcessing" | "BertProcessing":
            return [int(processor["cls"][1])], [int(processor["sep"][1])]
        case "Sequence":
            before: list[int] = []
            behind: list[int] = []
            for part in processor["processors"]:
                found = _around(part)
                if found is None:
                    return None
                before, behind = [*found[0], *before], [*behind, *found[1]]
            return before, behind
        case "TemplateProcessing":
            return _around_template(processor["single"], processor["special_tokens"])
    return None


def _around_template(
    pieces: Sequence[Mapping[str, Any]], special: Mapping[str, Any]
) -> tuple[list[int], list[int]] | None:
    sides: tuple[list[int], list[int]] = ([], [])
    texts = 0
    for piece in pieces:
        if "Sequence" in piece:
            texts += 1
        else:
            token = special[piece["SpecialToken"]["id"]]
            sides[min(texts, 1)].extend(int(i) for i in token["ids"])
    return sides if texts == 1 else None


def _id_list(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if type(v) is int]


def _stops(folder: str, config: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """Return the ids that end a text, of which the configurations list several."""
    named = (config, _optional(folder, "generation_config.json"))
    found = {i for fields in named for i in _id_list(fields.get("eos_token_id"))}
    return tuple(sorted(i for i in found if 0 <= i < size))
