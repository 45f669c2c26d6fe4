"""Text to token ids and back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refimpl.weights.gguf import required


def _token_id(key: str, value: Any, vocab_size: int) -> int:
    if not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ValueError(f"{key} is {value!r}, the vocabulary has {vocab_size} tokens")
    return value


class Tokenizer:
    """Text to token ids and back, and the chat template that the model was tuned with."""

    def __init__(
        self, inner: Any, *, eos_id: int, chat_template: str | None, bos: str = ""
    ) -> None:
        self.inner, self.eos_id = inner, eos_id
        self._chat_template, self._bos = chat_template, bos

    @property
    def vocab_size(self) -> int:
        return self.inner.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in the text count as such, none are added.

        Bytes that are not in the vocabulary give no token: SmolLM2's lacks 21 of the 256, among
        them those that start the rarest planes of Unicode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{text!r} is not text that UTF-8 can hold: {error.reason}") from error
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the ids, special tokens included; incomplete UTF-8 shows as U+FFFD."""
        return self.inner.decode([int(token) for token in tokens], skip_special_tokens=False)

    def stream(self) -> "TextStream":
        """Text of ids that arrive one by one."""
        return TextStream(self)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation, ``{"role": …, "content": …}`` each, up to the answer's start."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if self._chat_template is None:
            raise ValueError("this tokenizer has no chat template: use encode")
        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            self._chat_template
        )
        text = template.render(
            messages=list(messages),
            add_generation_prompt=True,
            bos_token=self._bos,
            eos_token=self.decode([self.eos_id]),
        )
        return self.encode(text)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Byte-level BPE from the vocabulary and merges that the GGUF file carries."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        if metadata.get("tokenizer.ggml.pre") != "smollm":
            raise ValueError(
                f"the pre-tokenizer {metadata.get('tokenizer.ggml.pre')!r} is not known: only "
                "'smollm' is"
            )
        tokens, pairs, kinds, eos_id = (
            required(metadata, f"tokenizer.ggml.{key}")
            for key in ("tokens", "merges", "token_type", "eos_token_id")
        )
        merges = [tuple(pair.split(" ")) for pair in pairs]
        try:
            inner = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        except Exception as error:  # the only class that this constructor raises
            reason = str(error).splitlines()[0]
            raise ValueError(f"the GGUF file's vocabulary is damaged: {reason}") from error
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        inner.decoder = decoders.ByteLevel()
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
        inner.add_special_tokens([AddedToken(token, special=True) for token in special])
        return cls(
            inner,
            eos_id=_token_id("tokenizer.ggml.eos_token_id", eos_id, len(tokens)),
            chat_template=metadata.get("tokenizer.chat_template"),
            bos=tokens[
                _token_id(
                    "tokenizer.ggml.bos_token_id",
                    metadata.get("tokenizer.ggml.bos_token_id", 0),
                    len(tokens),
                )
            ],
        )

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """The tokenizer of ``tokenizer.json``, its specials from ``tokenizer_config.json``."""
        from tokenizers import Tokenizer

        if not (folder / "tokenizer.json").is_file():
            raise ValueError(f"{folder.name}/ has no tokenizer.json")
        try:
            inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the only class that this reader raises
            raise ValueError(f"tokenizer.json is damaged: {str(error).splitlines()[0]}") from error
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

        template = folder / "chat_template.jinja"  # transformers 5 keeps it beside the config
        if template.is_file():
            config["chat_template"] = template.read_text(encoding="utf-8")

        def text(key: str) -> str:
            token = config.get(key) or ""
            return token["content"] if isinstance(token, dict) else token

        eos_id = inner.token_to_id(text("eos_token")) if text("eos_token") else None
        if eos_id is None:
            raise ValueError(f"{folder.name}/tokenizer_config.json names no eos_token")
        return cls(
            inner,
            eos_id=eos_id,
            chat_template=config.get("chat_template"),
            bos=text("bos_token"),
        )


class TextStream:
    """Text of ids as they arrive; all pieces joined are what ``decode`` gives for all ids.

    A character of several bytes may be spread over several tokens: it is held back until it is
    whole, so what has been shown never has to be taken back.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        # Decoding may depend on what stands before, so the last piece shown is decoded again.
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The text that this id makes certain, often empty in the middle of a character."""
        self._held.append(token)
        piece = self._piece()
        if piece.endswith("\ufffd"):
            return ""
        self._shown, self._held = self._held, []
        return piece

    def flush(self) -> str:
        """What is still held back; a character that never became whole shows as U+FFFD."""
        piece, self._shown, self._held = self._piece(), [], []
        return piece

    def _piece(self) -> str:
        return self._decode(self._shown + self._held)[len(self._decode(self._shown)) :]
