"""A decoder small enough to be run token by token, with a cache inside and a way to do without."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

NUM_LAYERS, WIDTH, HEADS, HEAD_DIM = 2, 6, 3, 4


class TinyDecoder:
    """Two layers of rotary attention with random weights, in float64.

    ``model(tokens_BT, positions_BT, mask_BTS) -> logits_BTV`` appends the keys and values of the
    tokens to a cache of its own, in the next T slots; the mask says which of the S slots then held
    each query may read. A query that may read nothing gets zeros from attention. The head is a
    cosine of a steep projection, so that a small error in attention moves the best token.
    """

    def __init__(self, vocab_size: int, seed: int, max_calls: int = 50) -> None:
        random = np.random.default_rng(seed)
        self.vocab_size, self.seed, self.max_calls = vocab_size, seed, max_calls
        self.embedding = random.standard_normal((vocab_size, WIDTH))
        self.q, self.k, self.v = random.standard_normal((3, NUM_LAYERS, WIDTH, HEADS * HEAD_DIM))
        self.o = random.standard_normal((NUM_LAYERS, HEADS * HEAD_DIM, WIDTH)) / 2
        self.head = 20 * random.standard_normal((WIDTH, vocab_size))
        self.cache: list[list[np.ndarray]] = [[] for _ in range(NUM_LAYERS)]
        self.num_calls = self.num_fed = 0

    def __repr__(self) -> str:
        return f"TinyDecoder({self.vocab_size}, seed={self.seed})"

    def fresh(self) -> "TinyDecoder":
        """The same weights with an empty cache."""
        model = deepcopy(self)
        model.cache, model.num_calls, model.num_fed = [[] for _ in range(NUM_LAYERS)], 0, 0
        return model

    def logits(self, text: Sequence[int]) -> np.ndarray:
        """Logits ``[V]`` behind ``text``: one row, one token after another, nothing kept."""
        states = [self.embedding[token] for token in text]
        for layer in range(NUM_LAYERS):
            mixed = []
            for t, x in enumerate(states):
                out = np.zeros((HEADS, HEAD_DIM))
                for h in range(HEADS):
                    part = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
                    q = _turned(x @ self.q[layer][:, part], t)
                    scores = [
                        q @ _turned(y @ self.k[layer][:, part], s) / HEAD_DIM**0.5
                        for s, y in enumerate(states[: t + 1])
                    ]
                    weights = np.exp(np.array(scores) - max(scores))
                    values = np.array([y @ self.v[layer][:, part] for y in states[: t + 1]])
                    out[h] = weights @ values / weights.sum()
                mixed.append(np.tanh(x + out.ravel() @ self.o[layer]))
            states = mixed
        return np.cos(states[-1] @ self.head)

    def __call__(self, tokens_BT: Tensor, positions_BT: Tensor, mask_BTS: Tensor) -> Tensor:
        """Logits ``[B, T, V]``; the cache then holds T more slots."""
        self.num_calls += 1
        if self.num_calls > self.max_calls:
            raise RuntimeError(f"the model was called more than {self.max_calls} times")
        if not isinstance(tokens_BT, Tensor) or tokens_BT.dim() != 2 or not tokens_BT.numel():
            raise ValueError("tokens_BT is a tensor of token ids of shape [B, T], T at least 1")
        B, T = tokens_BT.shape
        S = T + (self.cache[0][0].shape[2] if self.cache[0] else 0)
        for name, x, shape in (("positions", positions_BT, (B, T)), ("mask", mask_BTS, (B, T, S))):
            if tuple(x.shape) != shape:
                raise ValueError(f"the {name} must be {shape}, got {tuple(x.shape)}")
        if mask_BTS.dtype != torch.bool:
            raise ValueError(f"the mask must be bool, True where a key is read: {mask_BTS.dtype}")
        self.num_fed += B * T
        mask, positions = mask_BTS.numpy()[:, None], positions_BT.numpy()[:, None]
        x = self.embedding[tokens_BT.numpy()]
        for layer in range(NUM_LAYERS):
            q, k, v = (
                (x @ w[layer]).reshape(B, T, HEADS, HEAD_DIM).swapaxes(1, 2)
                for w in (self.q, self.k, self.v)
            )
            new = [_turned(k, positions), v]
            old = self.cache[layer]
            keys, values = self.cache[layer] = (
                [np.concatenate(pair, axis=2) for pair in zip(old, new, strict=True)]
                if old
                else new
            )
            scores = _turned(q, positions) @ keys.swapaxes(-1, -2) / HEAD_DIM**0.5
            weights = np.exp(scores) * mask
            total = weights.sum(-1, keepdims=True)
            out = np.where(total > 0, weights / np.where(total > 0, total, 1), 0) @ values
            x = np.tanh(x + out.swapaxes(1, 2).reshape(B, T, -1) @ self.o[layer])
        return torch.from_numpy(np.cos(x @ self.head))


def _turned(x: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """``x`` rotated to ``position``, which broadcasts over all axes but the last."""
    half = x.shape[-1] // 2
    angle = np.asarray(position)[..., None] * 50.0 ** (-np.arange(half) / half)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate((pairs.real, pairs.imag), axis=-1)
