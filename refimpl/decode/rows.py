"""Rows of tokens: read from what is given, padded to a tensor, found again in the logits."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

Tokens = Tensor | Sequence[int] | Sequence[Sequence[int]]


def read_prompts(tokens: Tokens, vocab_size: int) -> tuple[bool, list[list[int]]]:
    """Whether one prompt was given, and the prompts as lists; numpy arrays are read as tensors."""
    if not isinstance(tokens, Tensor) and hasattr(tokens, "__array__"):
        try:
            tokens = torch.as_tensor(tokens)
        except TypeError as error:  # of text, of objects
            of = getattr(tokens, "dtype", type(tokens))
            raise ValueError(f"token ids must be integers, got an array of {of}") from error
    if isinstance(tokens, Tensor):
        whole = not tokens.is_floating_point() and tokens.dtype != torch.bool
        if not whole or tokens.dim() not in (1, 2):
            raise ValueError(
                f"tokens must be a 1-D or 2-D tensor of integers, got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        tokens = tokens.tolist()
    try:
        single = not len(tokens) or not _is_row(tokens[0])
        rows = [
            [operator.index(token) for token in row] for row in ([tokens] if single else tokens)
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"token ids must be integers, got {tokens!r}") from error
    for index, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {index} is empty: decoding needs at least one token")
        for token in row:
            if not 0 <= token < vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {vocab_size}")
    return single, rows


def _is_row(tokens: object) -> bool:
    return isinstance(tokens, Tensor | Sequence) or getattr(tokens, "ndim", 0) > 0


def pad(rows: list[list[int]]) -> tuple[Tensor, list[int]]:
    """Rows padded on the right ``[B, T]``, and their lengths."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows]), lengths


def if_ragged(lengths_B: list[int]) -> list[int] | None:
    """The lengths where they differ; None where every row is full, which needs no mask."""
    return lengths_B if min(lengths_B) < max(lengths_B) else None


def logits_behind(logits_BTV: Tensor, lengths_B: list[int]) -> Tensor:
    """Logits ``[B, V]`` behind each row's last real token."""
    last = (torch.tensor(lengths_B) - 1).clamp(min=0)
    return logits_BTV[torch.arange(len(lengths_B)), last]
