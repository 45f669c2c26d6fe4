"""What a forward pass has to compute and to move, and the least time that takes.

A roofline is a bound and not a prediction: it assumes that memory delivers its stated bandwidth,
that arithmetic runs at its stated rate, that the two overlap perfectly, that several devices share
the work evenly and talk for free, and that nothing waits. Measured times are above it, for decoding
often by a factor of two or more; a measured time below it means that one of the two is wrong.
"""

from refimpl.roofline.crossings import (
    compute_bound_context,
    crossover_batch,
    decode_sweep,
    intensity_ceiling,
)
from refimpl.roofline.flops import attention_flops, forward_flops, linear_flops
from refimpl.roofline.passes import attention_read_bytes, decode_step, prefill
from refimpl.roofline.sparse import SparseRead, sparse_read
from refimpl.roofline.step import Step, lower_bound, ridge

__all__ = [
    "SparseRead",
    "Step",
    "attention_flops",
    "attention_read_bytes",
    "compute_bound_context",
    "crossover_batch",
    "decode_step",
    "decode_sweep",
    "forward_flops",
    "intensity_ceiling",
    "linear_flops",
    "lower_bound",
    "prefill",
    "ridge",
    "sparse_read",
]
