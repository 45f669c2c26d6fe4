"""Decoding: prompts in, new tokens out.

``loops`` generates one continuation a prompt, with and without a cache; ``samples`` draws several
from one prompt and ``beams`` searches for the likeliest, both on a cache that is prefilled once;
``search`` is the rule by which beams are kept; ``batch`` and ``rows`` are what all of them share.
"""

from refimpl.decode.batch import OnToken, SamplerLike
from refimpl.decode.beams import Beams, beam_search
from refimpl.decode.loops import generate, generate_naive
from refimpl.decode.rows import Tokens
from refimpl.decode.samples import generate_samples

__all__ = [
    "Beams",
    "OnToken",
    "SamplerLike",
    "Tokens",
    "beam_search",
    "generate",
    "generate_naive",
    "generate_samples",
]
