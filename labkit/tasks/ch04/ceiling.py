"""Exercise of chapter 04: the context beyond which no batch reaches the ridge."""

import math
import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import last, shape
from labkit.tasks.ch04.roof import GPUS

Model = tuple[int, int, int, int, int, float, float]

# ── longest_compute_bound ─────────────────────────────────────────────────────────────────────


def _longest_examples(*models: Model) -> list[Example]:
    """The last context at which a request's FLOPs outlast the read of its cache, by bisection."""
    examples = []
    for args in models:
        parameters, L, H, G, D, teraflops, terabytes = args

        def computes_longer(tokens: int, *, args=args) -> bool:
            parameters, L, H, G, D, teraflops, terabytes = args
            per_head = sum(2 * D * tokens for _ in ("scores", "values"))
            flops = 2 * parameters + L * H * per_head
            read = sum(2 * L * G * D * tokens for _ in ("key", "value"))
            return flops / Fraction(str(teraflops)) > read / Fraction(str(terabytes))

        examples.append(Example(args, float(last(computes_longer))))
    return examples


def _longest_plain(
    parameters,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    teraflops,
    terabytes_per_second,
):
    """Where FLOPs a request over bytes a request equal the ridge."""
    ridge = teraflops / terabytes_per_second
    flops_per_token = 4 * num_layers * num_query_heads * head_dim
    bytes_per_token = 4 * num_layers * num_kv_heads * head_dim
    meets = 2 * parameters / (ridge * bytes_per_token - flops_per_token)
    return f"{math.ceil(meets) - 1} tokens"  # where they meet no batch is large enough


def _longest_by_groups(
    parameters,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    teraflops,
    terabytes_per_second,
):
    spare = teraflops / terabytes_per_second - num_query_heads / num_kv_heads
    meets = parameters / spare / (2 * num_layers * num_kv_heads * head_dim)
    return f"{math.ceil(meets) - 1} tokens"


def _meets(flops: float, per_token_flops: float, per_token_bytes: float, ridge: float) -> str:
    spare = ridge * per_token_bytes - per_token_flops
    return f"{max(0, int(flops / spare))} tokens"


def _longest_no_attention(parameters, L, H, G, D, teraflops, terabytes):
    return _meets(2 * parameters, 0, 4 * L * G * D, teraflops / terabytes)


def _longest_query_heads(parameters, L, H, G, D, teraflops, terabytes):
    return _meets(2 * parameters, 4 * L * H * D, 4 * L * H * D, teraflops / terabytes)


def _longest_one_flop(parameters, L, H, G, D, teraflops, terabytes):
    return _meets(parameters, 2 * L * H * D, 4 * L * G * D, teraflops / terabytes)


def _longest_keys_alone(parameters, L, H, G, D, teraflops, terabytes):
    return _meets(2 * parameters, 4 * L * H * D, 2 * L * G * D, teraflops / terabytes)


def _longest_batch_one(parameters, L, H, G, D, teraflops, terabytes):
    ridge = teraflops / terabytes
    flops = 2 * parameters - ridge * 2 * parameters
    return _meets(flops, 4 * L * H * D, 4 * L * G * D, ridge)


def _longest_one_layer(parameters, L, H, G, D, teraflops, terabytes):
    return _meets(2 * parameters, 4 * H * D, 4 * G * D, teraflops / terabytes)


def _draw_longest(seed: int) -> Model:
    draw = random.Random(seed)
    parameters, L, H, G, D = shape(draw)
    while H // G >= 32:  # one key-value head: attention alone comes close to the ridge
        parameters, L, H, G, D = shape(draw)
    terabytes, teraflops = draw.choice(tuple(GPUS.values()))
    return parameters, L, H, G, D, teraflops, terabytes


LONGEST_COMPUTE_BOUND = Task(
    name="longest_compute_bound",
    chapter=4,
    title="Where no batch helps",
    minutes=12,
    points=4,
    level=3,
    spec=(
        "The longest context at which a decode step of this model, weights and cache in BF16, can "
        "still be bound by arithmetic when the batch is large enough, as text such as '1,499 "
        "tokens'; the ridge is above num_query_heads / num_kv_heads."
    ),
    signature=(
        "longest_compute_bound(parameters: int, num_layers: int, num_query_heads: int, "
        "num_kv_heads: int, head_dim: int, teraflops: float, terabytes_per_second: float) -> str"
    ),
    properties=(
        Property(
            "a single weight is outweighed by the first cached token",
            lambda: _longest_examples((1, 2, 2, 2, 16, 300.0, 2.0)),
        ),
        Property(
            "as many query heads as key-value heads",
            lambda: _longest_examples(
                (10_000_000, 2, 2, 2, 16, 3000.0, 2.0), (10_000_000, 5, 2, 2, 16, 300.0, 2.0)
            ),
        ),
        Property(
            "grouped heads do more FLOPs on each byte",
            lambda: _longest_examples((10_000_000, 2, 12, 2, 16, 40.0, 2.0)),
        ),
        Property(
            "Llama-3-70B and Llama-3-8B on an H100",
            lambda: _longest_examples(
                (70_553_706_496, 80, 64, 8, 128, 989.0, 3.35),
                (8_030_261_248, 32, 32, 8, 128, 989.0, 3.35),
            ),
        ),
    ),
    hints=(
        "With a very large batch the weights' bytes vanish from the ratio and their FLOPs do not: "
        "compare what one request computes with what it reads alone.",
        "FLOPs: 2P + 4·layers·H·D·S. Bytes: 4·layers·G·D·S in BF16. Their ratio equals the ridge.",
        "S < 2P / (ridge · 4·layers·G·D − 4·layers·H·D); where they are equal no batch is enough.",
    ),
    mutants=(
        Mutant(
            "attention computes nothing",
            "attention's own FLOPs are left out: each cached byte gives H/G of them, which moves "
            "the meeting point out",
            _longest_no_attention,
        ),
        Mutant(
            "query heads read",
            "the bytes are those of the key-value heads; the query heads of a group share them",
            _longest_query_heads,
        ),
        Mutant(
            "one FLOP for a multiply-add",
            "a weight is multiplied and added for each token: 2 FLOPs, as the data sheet counts",
            _longest_one_flop,
        ),
        Mutant(
            "keys alone",
            "a request reads its values as well as its keys",
            _longest_keys_alone,
        ),
        Mutant(
            "a batch of one",
            "this charges one request with all the weights' bytes; in a large batch its part of "
            "them tends to nothing",
            _longest_batch_one,
        ),
        Mutant(
            "one layer",
            "cache and attention are counted in one layer, the parameters in all",
            _longest_one_layer,
        ),
    ),
    answers=(_longest_plain, _longest_by_groups),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("tokens"),
    draw=_draw_longest,
    ask=lambda parameters, L, H, G, D, teraflops, terabytes: (
        f"{parameters / 1e9:.1f} billion parameters, {L} layers, {H} query heads, {G} key-value "
        f"heads of {D} elements, all in BF16,\non a GPU of {teraflops:g} TFLOP/s and "
        f"{terabytes:g} TB/s.\nUp to which context can a large enough batch be bound by "
        "arithmetic?"
    ),
    unit="tokens",
)
