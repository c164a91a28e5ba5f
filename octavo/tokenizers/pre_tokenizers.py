r"""How byte-level BPE vocabularies cut text into words before merging: the kinds that GGUF files name.

A kind is a sequence of patterns; each one cuts what the ones before it left, keeping matches and gaps alike. The
patterns are those of the models' own tokenizer.json, the names those of `tokenizer.ggml.pre` (llama.cpp,
src/llama-vocab.cpp). Pattern syntax is Oniguruma's, which the `tokenizers` library uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from tokenizers import pre_tokenizers

from octavo.errors import UnsupportedError


@dataclass(frozen=True)
class PreTokenization:
    """ignore_merges: a word that is a token as a whole is not merged; add_bos: what a file without the flag means."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


def find_pre_tokenization(kind: str) -> PreTokenization:
    """Return the rules of a `tokenizer.ggml.pre` kind; raises UnsupportedError for one that is not known."""
    found = PRE_TOKENIZATIONS.get(kind)
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZATIONS))
        raise UnsupportedError(
            f"the GGUF file's pre-tokenizer kind {kind!r} is not supported: its text would be cut into wrong tokens. "
            f"Use the model's original folder with tokenizer.json (tokenizer=...), or one of the kinds {known}"
        )
    return found


def build_pre_tokenizer(rules: PreTokenization) -> pre_tokenizers.PreTokenizer:
    """Build the pre-tokenizer: the cuts, then bytes spelled in GPT-2's alphabet."""
    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in rules.patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# The parts that the patterns are made of.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALISED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_UPPER_CASE = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_GPT4O = (
    rf"{_CAPITALISED}{_CONTRACTION}?|{_UPPER_CASE}{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_EXAONE_MOE_WORD = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_CASCADING_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_YOUTU_ASIAN = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)

# Letters with case, as DeepSeek's first tokenizers list them (an older Unicode version's).
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION = r"[!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"

_DIGIT_WISE = PreTokenization((r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenization((_GPT2,))
_LLAMA3_RULES = PreTokenization((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULES = PreTokenization((_QWEN2,))
_GPT4O_RULES = PreTokenization((_GPT4O,))
_DEEPSEEK3_RULES = PreTokenization((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3))
_BAILING_RULES = PreTokenization(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+",
    )
)

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    # What llama.cpp does for files that name no kind (Falcon's rules).
    "default": PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": PreTokenization((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _LLAMA3_RULES,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenization((_LLAMA3,))),
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat"),
            *("a.x-4.0", "mellum", "modern-bert", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"),
        ),
        _PLAIN_GPT2,
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGIT_WISE
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"),
        _QWEN2_RULES,
    ),
    "qwen35": PreTokenization(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )
    ),
    "ufakzeka": PreTokenization((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",)),
    "laguna": PreTokenization((r"[^\n]+|[\n]+", _QWEN2)),
    "minicpm5": PreTokenization(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True
    ),
    "seed-coder": PreTokenization(
        (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    ),
    "exaone-moe": PreTokenization(
        (
            rf"{_CONTRACTION}|{_EXAONE_MOE_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]"
            rf"|\s+(?!\S)|\s+",
        )
    ),
    "jais-2": PreTokenization((rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_CASCADING_SPACES}",)),
    "tekken": PreTokenization(
        (rf"{_CAPITALISED}|{_UPPER_CASE}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",),
        ignore_merges=True,
        add_bos=True,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O_RULES),
    "youtu": PreTokenization((_YOUTU_ASIAN, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), ignore_merges=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3_RULES),
    "deepseek-llm": PreTokenization(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            rf"\s?{_DEEPSEEK_PUNCTUATION}+",
            r"\s+$",
            _HAN_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenization((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_RULES),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenization((_BLOOM,))),
    "viking": PreTokenization((_BLOOM, r"\p{N}")),
}
