"""Accept a draft or replace it, so that what comes out follows the target. arXiv:2211.17192.

Leviathan et al. call the target's law p and the draft's q; Chen et al. (arXiv:2302.01318) the other
way round. Here they are ``target_probs`` and ``draft_probs``. Nothing is changed in place.
"""

import torch
from torch import Tensor

from refimpl.sampling import draw

SUM_TOLERANCE = 1e-5


def accept_probability(target_probs: Tensor, draft_probs: Tensor, token: Tensor) -> Tensor:
    """``min(1, target / draft)`` at ``token``: the chance that the draft stands, ``[...]``.

    The laws are ``[..., V]`` and ``token`` is ``[...]``. A token to which the draft gives nothing
    was not drawn from it; the chance is then 1 if the target gives it anything, else 0.
    """
    _check_shapes(target_probs, draft_probs)
    target, draft = _at(target_probs, token), _at(draft_probs, token)
    ratio = target / draft.where(draft > 0, torch.ones_like(draft))
    return torch.where(draft > 0, ratio.clamp(max=1), (target > 0).to(ratio.dtype))


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """``max(0, target - draft)``, normalised: what a replacement is drawn from, ``[..., V]``.

    Where the draft nowhere falls short of the target nothing is ever rejected, and the target
    stands in for a law without mass.
    """
    _check_shapes(target_probs, draft_probs)
    missing = (target_probs.double() - draft_probs.double()).clamp(min=0)
    total = missing.sum(-1, keepdim=True)
    return torch.where(total > 0, missing / total.where(total > 0, 1.0), target_probs.double())


def accept_or_resample(
    target_probs: Tensor,
    draft_probs: Tensor,
    token: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Tokens that follow the target, ``[...]``, and which of them are the drafts, bool ``[...]``.

    1. A draft stands with probability ``min(1, target / draft)``.
    2. Where it does not, a token is drawn from the residual.

    ``token`` must have been drawn from ``draft_probs``: a drafter that takes its best token has a
    one-hot law. The laws are ``[..., V]``. Two random numbers are used for every element, whatever
    comes out. Raises ``ValueError`` for laws of different shape, rows that are no probabilities
    (such as logits), or tokens outside the vocabulary.
    """
    target_probs, draft_probs = _law("target_probs", target_probs), _law("draft_probs", draft_probs)
    token = _check(target_probs, draft_probs, token)
    uniform = torch.rand(token.shape, generator=generator, dtype=torch.float64)
    accepted = uniform < accept_probability(target_probs, draft_probs, token)
    other = draw(_rows(residual(target_probs, draft_probs)), generator)
    return torch.where(accepted, token, other.reshape(token.shape)), accepted


def verify(
    target_probs: Tensor,
    draft_probs: Tensor,
    draft_tokens: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Tokens ``[..., γ + 1]`` and how many drafts stand, ``[...]``: a block of γ drafts at once.

    The first ``accepted + 1`` tokens of a row are new; what follows them means nothing. They are
    the drafts up to the first that fails, then one more: its replacement, or, if none fails, a
    token drawn from the target behind the last draft. ``target_probs`` is ``[..., γ + 1, V]``, one
    law before each draft and one behind the last; ``draft_probs`` ``[..., γ, V]``, ``draft_tokens``
    ``[..., γ]``. γ = 0 is a plain draw.
    """
    target_probs = _law("target_probs", target_probs)
    draft_tokens = torch.as_tensor(draft_tokens)
    if not draft_tokens.dim():
        raise ValueError("draft_tokens must be [..., γ], got one token")
    gamma = draft_tokens.shape[-1]
    if target_probs.shape[:-1] != (*draft_tokens.shape[:-1], gamma + 1):
        raise ValueError(
            f"{gamma} drafts need {gamma + 1} target laws each: target_probs is "
            f"{tuple(target_probs.shape)}, draft_tokens {tuple(draft_tokens.shape)}"
        )
    before, behind = target_probs[..., :gamma, :], target_probs[..., gamma, :]
    tokens, kept = accept_or_resample(before, draft_probs, draft_tokens, generator)
    accepted = kept.long().cumprod(-1).sum(-1)
    last = draw(_rows(behind), generator).reshape(accepted.shape)
    return torch.cat((tokens, last[..., None]), dim=-1), accepted


def acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """The chance that a draft stands, ``[...]``: the mass both laws share, 1 minus half their L1
    distance. Its mean over positions is the α of the closed forms. arXiv:2211.17192, Cor. 3.6.
    """
    target_probs, draft_probs = _law("target_probs", target_probs), _law("draft_probs", draft_probs)
    _check_shapes(target_probs, draft_probs)
    return torch.minimum(target_probs, draft_probs).sum(-1)


def _law(name: str, probs: Tensor) -> Tensor:
    """In float64; ``ValueError`` unless every row is a distribution."""
    if not isinstance(probs, Tensor) or not probs.is_floating_point() or not probs.dim():
        kind = probs.dtype if isinstance(probs, Tensor) else type(probs).__name__
        raise ValueError(f"{name} must be a floating-point tensor [..., V], got {kind}")
    probs = probs.double()
    if not ((probs >= 0).all() and ((probs.sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        raise ValueError(
            f"{name} must hold probabilities: no entry below 0, every row summing to 1 "
            f"(within {SUM_TOLERANCE}); logits go through a sampler first, and a law of 16 bits is "
            "normalised again in a wider type"
        )
    return probs


def _check_shapes(target_probs: Tensor, draft_probs: Tensor) -> None:
    if target_probs.shape[-1] != draft_probs.shape[-1]:
        raise ValueError(
            f"the vocabularies differ: {target_probs.shape[-1]} in the target, "
            f"{draft_probs.shape[-1]} in the draft"
        )
    if target_probs.shape != draft_probs.shape:
        raise ValueError(
            f"target_probs is {tuple(target_probs.shape)}, draft_probs {tuple(draft_probs.shape)}"
        )


def _check(target_probs: Tensor, draft_probs: Tensor, token: Tensor) -> Tensor:
    _check_shapes(target_probs, draft_probs)
    token = torch.as_tensor(token)
    if token.is_floating_point() or token.dtype == torch.bool:
        raise ValueError(f"tokens must be integers, got {token.dtype}")
    if token.shape != target_probs.shape[:-1]:
        raise ValueError(
            f"one token for each law: token is {tuple(token.shape)}, the laws "
            f"{tuple(target_probs.shape)}"
        )
    outside = (token < 0) | (token >= target_probs.shape[-1])
    if outside.any():
        raise ValueError(
            f"token {int(token[outside][0])} is outside the vocabulary of {target_probs.shape[-1]}"
        )
    return token.long()


def _at(probs: Tensor, token: Tensor) -> Tensor:
    return probs.gather(-1, token.long()[..., None]).squeeze(-1)


def _rows(probs: Tensor) -> Tensor:
    """Leading dimensions as one."""
    return probs.reshape(-1, probs.shape[-1])
