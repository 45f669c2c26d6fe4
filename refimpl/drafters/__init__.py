"""What proposes tokens for a target to verify: the protocol, and the drafters that follow it.

``protocol`` says what speculative decoding needs of a drafter; ``models`` holds the one that runs a
cheaper decoder, among them the target itself with fewer bits or fewer layers; ``lookup`` the one
that copies from the text so far.
"""

from refimpl.drafters.lookup import PromptLookup
from refimpl.drafters.models import ModelDrafter, quantised_self, skipped_layers, without_layers
from refimpl.drafters.protocol import Choose, Draft, Drafter, one_hot

__all__ = [
    "Choose",
    "Draft",
    "Drafter",
    "ModelDrafter",
    "PromptLookup",
    "one_hot",
    "quantised_self",
    "skipped_layers",
    "without_layers",
]
