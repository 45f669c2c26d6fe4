"""Several continuations verified in one pass: a tree of drafts, a mask, and the path to keep.

A tree is a list of parents: node ``i`` follows node ``parents[i]``, or the text itself where that
is -1; parents come before their children. arXiv:2305.09781.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.cache import KVCache
from refimpl.cache.protocol import integers
from refimpl.model import Decoder, Step
from refimpl.rope import rotary_table


def tree_positions(parents: Sequence[int], past: int) -> list[int]:
    """Each node's position in the text: ``past`` and its depth. Siblings share one."""
    positions: list[int] = []
    for parent in _checked(parents):
        positions.append(past if parent < 0 else positions[parent] + 1)
    return positions


def tree_mask(parents: Sequence[int], past: int) -> Tensor:
    """Who may read what, bool ``[nodes, past + nodes]``: the past, the ancestors, itself."""
    parents = _checked(parents)
    own = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            own[node] |= own[parent]
    return torch.cat((torch.ones(len(parents), past, dtype=torch.bool), own), dim=1)


@torch.no_grad()
def tree_logits(
    model: Decoder, tokens: Sequence[int], parents: Sequence[int], cache: KVCache
) -> Tensor:
    """Logits ``[nodes, V]`` behind every node, in one pass; the cache then holds all nodes.

    ``cache`` has one row. Raises ``ValueError`` for tokens and parents that do not match, a token
    outside the vocabulary, or a tree that grows beyond the context.
    """
    nodes, arch = integers("tokens", tokens), model.arch
    (past,) = cache.num_tokens.tolist()
    positions = tree_positions(parents, past)
    if len(nodes) != len(positions) or not all(0 <= token < arch.vocab_size for token in nodes):
        raise ValueError(
            f"{len(positions)} parents need as many tokens from 0 to {arch.vocab_size - 1}: {nodes}"
        )
    if max(positions) >= arch.max_context:
        raise ValueError(f"position {max(positions)} is beyond the context of {arch.max_context}")
    wide = torch.promote_types(model.dtype, torch.float32)
    cos, sin = rotary_table(
        torch.tensor([positions]), arch.head_dim, arch.rope_theta, arch.rope_scaling, wide
    )
    step = Step(cos[:, None], sin[:, None], tree_mask(parents, past)[None], cache, None)
    try:
        x_BTM = model.embed(torch.tensor([nodes]))
        for index, layer in enumerate(model.layers):
            x_BTM = layer(x_BTM, index, step)
        return model.head(model.norm(x_BTM))[0]
    except BaseException:
        cache.truncate([past])
        raise


def keep_path(cache: KVCache, num_layers: int, past: int, path: Sequence[int]) -> None:
    """Of the nodes behind ``past`` tokens keep those on ``path``, in order, and close the gaps.

    ``cache`` has one row. Raises ``ValueError`` for a path that is not increasing or not held.
    """
    nodes = integers("path", path)
    (held,) = cache.num_tokens.tolist()
    steps = zip([-1, *nodes], nodes, strict=False)
    if any(second <= first for first, second in steps) or (nodes and past + nodes[-1] >= held):
        raise ValueError(
            f"path must go up through the {held - past} nodes behind {past} tokens, got {nodes}"
        )
    slots = torch.tensor([past + node for node in nodes], dtype=torch.long)
    # All layers are copied first: some caches hand out views of what is about to be overwritten.
    kept = [
        [x_BGSD[:, :, slots].clone() for x_BGSD in cache.read(layer)] for layer in range(num_layers)
    ]
    cache.truncate([past])
    if nodes:
        for layer, (k_BGTD, v_BGTD) in enumerate(kept):
            cache.append(layer, k_BGTD, v_BGTD)


def _checked(parents: Sequence[int]) -> list[int]:
    checked = integers("parents", parents)
    for node, parent in enumerate(checked):
        if not -1 <= parent < node:
            raise ValueError(f"the parent of node {node} must lie in -1 to {node - 1}: {parent}")
    if not checked:
        raise ValueError("a tree needs at least one node")
    return checked
