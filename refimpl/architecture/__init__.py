"""What a decoder's shape is: the facts from which every size and count follows. No torch here."""

from refimpl.architecture.core import Architecture, Detail
from refimpl.architecture.layers import ATTENTION_KINDS, KINDS, Layer
from refimpl.architecture.rope import RopeScaling

__all__ = ["ATTENTION_KINDS", "KINDS", "Architecture", "Detail", "Layer", "RopeScaling"]
