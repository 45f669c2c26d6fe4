"""Exercises of chapter 01 on the loop and what it costs."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from labkit.tasks import Example, Mutant, Property, Task
from refimpl.architecture import Architecture

# ── token_passes ──────────────────────────────────────────────────────────────────────────────


def _token_passes_oracle(num_prompt: int, num_new: int) -> int:
    length, passes = num_prompt, 0
    for _ in range(num_new):
        passes += length
        length += 1
    return passes


def _token_passes_examples(*sizes: tuple[int, int]) -> list[Example]:
    return [Example(size, _token_passes_oracle(*size)) for size in sizes]


def _token_passes_closed(num_prompt, num_new):
    """n passes over the prompt, plus 0 + 1 + … + (n − 1) passes over generated tokens."""
    return num_new * num_prompt + num_new * (num_new - 1) // 2


def _token_passes_summed(num_prompt, num_new):
    return sum(range(num_prompt, num_prompt + num_new))


def _token_passes_cached(num_prompt, num_new):
    return num_prompt + num_new - 1


def _token_passes_cached_and_last(num_prompt, num_new):
    return num_prompt + num_new


def _token_passes_counts_itself(num_prompt, num_new):
    return sum(num_prompt + i for i in range(1, num_new + 1))


def _token_passes_full_length(num_prompt, num_new):
    return num_new * (num_prompt + num_new - 1)


def _token_passes_past_full_length(num_prompt, num_new):
    return num_new * (num_prompt + num_new)


def _token_passes_grown_by_one_more(num_prompt, num_new):
    n = num_prompt + num_new
    return n * (n + 1) // 2


def _token_passes_no_prompt_from_zero(num_prompt, num_new):
    return num_new * (num_new - 1) // 2


def _token_passes_prompt_grown(num_prompt, num_new):
    n = num_prompt + num_new - 1
    return n * (n + 1) // 2


def _token_passes_no_prompt(num_prompt, num_new):
    return num_new * (num_new + 1) // 2


TOKEN_PASSES = Task(
    name="token_passes",
    chapter=1,
    title="Count the token-passes",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "Number of tokens pushed through the decoder, over all passes, when num_new tokens are "
        "generated after a prompt of num_prompt and nothing is kept between passes."
    ),
    signature="token_passes(num_prompt: int, num_new: int) -> int",
    properties=(
        Property(
            "one new token costs one pass over the prompt",
            lambda: _token_passes_examples((1, 1), (5, 1), (12, 1)),
        ),
        Property(
            "each pass runs over the prompt and every token generated before it",
            lambda: _token_passes_examples((1, 2), (1, 3), (2, 3), (7, 5), (3, 40), (900, 17)),
        ),
        Property(
            "the count is exact for long generations",
            lambda: _token_passes_examples((64, 1000), (7, 2000)),
        ),
        Property(
            "generating nothing costs nothing",
            lambda: _token_passes_examples((1, 0), (9, 0)),
            edge=True,
        ),
    ),
    hints=(
        "Write down how many tokens go in on the first pass, on the second, on the last.",
        "Pass i (from 0) runs over num_prompt + i tokens; the token it yields is not yet in it.",
        "num_new times num_prompt, plus the sum 0 + 1 + … + (num_new − 1).",
    ),
    mutants=(
        Mutant(
            "as if cached",
            "this counts the prompt once and every later token once, which is the cost with a "
            "cache; without one each pass runs over the whole sequence again",
            _token_passes_cached,
            also=(_token_passes_cached_and_last,),
        ),
        Mutant(
            "counts the token being made",
            "a pass ends by yielding a token, so that token is first an input of the next pass; "
            "the last one generated is never run through the decoder at all",
            _token_passes_counts_itself,
        ),
        Mutant(
            "every pass at final length",
            "all passes are charged as if they were as long as the last; the sequence grows, and "
            "the generated part averages half of that",
            _token_passes_full_length,
            also=(_token_passes_past_full_length,),
        ),
        Mutant(
            "prompt grown token by token",
            "this sums from a length of 1, as if the prompt had been generated as well; the prompt "
            "arrives whole and the first pass already has its full length",
            _token_passes_prompt_grown,
            also=(_token_passes_grown_by_one_more,),
        ),
        Mutant(
            "prompt left out",
            "N(N+1)/2 is the count for a prompt of one token; a longer prompt is run again on "
            "every pass, num_new times in all",
            _token_passes_no_prompt,
            also=(_token_passes_no_prompt_from_zero,),
        ),
    ),
    answers=(_token_passes_closed, _token_passes_summed),
)


# ── generate ──────────────────────────────────────────────────────────────────────────────────


class ToyModel:
    """A causal model whose prediction depends on every token before it and on their order.

    ``model(tokens_BT) -> logits_BTV``; row ``t`` predicts the token at ``t + 1``. It refuses more
    than ``max_calls`` calls, so that a loop without an end is an error and not a wait.
    """

    def __init__(self, vocab_size: int, max_calls: int = 100) -> None:
        self.vocab_size, self.max_calls, self.calls = vocab_size, max_calls, 0

    def __repr__(self) -> str:
        return f"a toy model of {self.vocab_size} tokens"

    def next_token(self, prefix: Sequence[int]) -> int:
        """What follows ``prefix``: plain integers, no tensors."""
        mixed = sum((2 * i + 3) * (token + 1) for i, token in enumerate(prefix))
        return (mixed + len(prefix)) % self.vocab_size

    def __call__(self, tokens_BT: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > self.max_calls:
            raise RuntimeError(f"the model was called more than {self.max_calls} times")
        if not isinstance(tokens_BT, Tensor) or tokens_BT.dim() != 2 or not tokens_BT.numel():
            raise ValueError("the model takes a tensor of token ids of shape [B, T], T at least 1")
        if tokens_BT.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"token ids are integers, got {tokens_BT.dtype}")
        B, T = tokens_BT.shape
        logits = torch.full((B, T, self.vocab_size), -2.0)
        for b in range(B):
            row = tokens_BT[b].tolist()
            for t in range(T):
                logits[b, t, self.next_token(row[: t + 1])] = 3.0
        return logits


def _generate_example(
    vocab_size: int, prompt: list[int], max_new_tokens: int, stop_tokens: tuple[int, ...] = ()
) -> Example:
    model, text = ToyModel(vocab_size), list(prompt)
    while len(text) < len(prompt) + max_new_tokens:
        text.append(model.next_token(text))
        if text[-1] in stop_tokens:
            break
    return Example((model, prompt, max_new_tokens, stop_tokens), text[len(prompt) :])


def _generate_one() -> Iterable[Example]:
    yield _generate_example(11, [2], 1)
    yield _generate_example(11, [2, 5, 3], 1)


def _generate_many() -> Iterable[Example]:
    yield _generate_example(11, [2], 2)
    yield _generate_example(11, [2, 5], 4)
    yield _generate_example(97, [31, 4, 15, 92], 9)


def _generate_stop() -> Iterable[Example]:
    for vocab_size, prompt, steps, at in ((11, [2], 3, 0), (97, [31, 4, 15], 8, 2)):
        free = _generate_example(vocab_size, prompt, steps).expected
        yield _generate_example(vocab_size, prompt, steps, (free[at], vocab_size + 1))


def _generate_nothing() -> Iterable[Example]:
    yield _generate_example(11, [2, 5], 0)


def _generate_stop_in_prompt() -> Iterable[Example]:
    yield _generate_example(97, [31, 4], 3, (31, 4))


def _generate_plain(model, prompt, max_new_tokens, stop_tokens=()):
    """Run everything, take the last row, choose, append, repeat."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new_tokens:
        logits_BTV = model(torch.tensor([tokens]))
        tokens.append(int(logits_BTV[0, -1].argmax()))
        if tokens[-1] in stop_tokens:
            break
    return tokens[len(prompt) :]


def _generate_tensors(model, prompt, max_new_tokens, stop_tokens=()):
    tokens, new = torch.tensor(prompt)[None], []
    for _ in range(max_new_tokens):
        token = model(tokens)[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat((tokens, token), dim=1)
        new.append(token.item())
        if new[-1] in stop_tokens:
            return new
    return new


def _generate_variant(
    model, prompt, max_new_tokens, stop_tokens, *, row=-1, feed="all", keep_stop=True, stops=True
):
    """The loop with one thing done wrong; returns prompt and new tokens."""
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        given = {"all": tokens, "last": tokens[-1:], "prompt": list(prompt)}[feed]
        token = int(model(torch.tensor([given]))[0, row].argmax())
        if stops and token in stop_tokens:
            return [*tokens, token] if keep_stop else tokens
        tokens.append(token)
    return tokens


def _generate_first_row(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = _generate_variant(model, prompt, max_new_tokens, stop_tokens, row=0)
    return tokens[len(prompt) :]


def _generate_forgetful(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = _generate_variant(model, prompt, max_new_tokens, stop_tokens, feed="last")
    return tokens[len(prompt) :]


def _generate_not_fed_back(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = _generate_variant(model, prompt, max_new_tokens, stop_tokens, feed="prompt")
    return tokens[len(prompt) :]


def _generate_with_prompt(model, prompt, max_new_tokens, stop_tokens=()):
    return _generate_variant(model, prompt, max_new_tokens, stop_tokens)


def _generate_stop_dropped(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = _generate_variant(model, prompt, max_new_tokens, stop_tokens, keep_stop=False)
    return tokens[len(prompt) :]


def _generate_never_stops(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = _generate_variant(model, prompt, max_new_tokens, stop_tokens, stops=False)
    return tokens[len(prompt) :]


def _generate_one_too_many(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = _generate_variant(model, prompt, max_new_tokens + 1, stop_tokens)
    return tokens[len(prompt) :]


def _generate_stops_on_prompt(model, prompt, max_new_tokens, stop_tokens=()):
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        if set(tokens) & set(stop_tokens):
            break
    return tokens[len(prompt) :]


GENERATE = Task(
    name="generate",
    chapter=1,
    title="The loop",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "The list of new token ids that greedy decoding yields after prompt: at most "
        "max_new_tokens, ending with the first of stop_tokens that is generated, where "
        "model(tokens_BT) gives logits_BTV for every position."
    ),
    signature=(
        "generate(model, prompt: list[int], max_new_tokens: int, "
        "stop_tokens: tuple[int, ...] = ()) -> list[int]"
    ),
    properties=(
        Property("the last position's logits choose the next token", _generate_one),
        Property("every token is appended and run through the model again", _generate_many),
        Property("a generated stop token is the last one returned", _generate_stop),
        Property("max_new_tokens = 0 returns an empty list", _generate_nothing, edge=True),
        Property("a stop token in the prompt ends nothing", _generate_stop_in_prompt, edge=True),
    ),
    hints=(
        "One pass: model(torch.tensor([tokens])) has shape [1, T, V]; only one of its rows is new.",
        "Take logits[0, −1].argmax(), append it to a copy of the prompt, and run all of it again.",
        "Return tokens[len(prompt):]; check the stop tokens after appending, on the new one only.",
    ),
    mutants=(
        Mutant(
            "reads the first position",
            "row 0 predicts the token after the first one; the next token is predicted by the "
            "last row, and with a prompt of one token the two are the same",
            _generate_first_row,
        ),
        Mutant(
            "feeds only the last token",
            "the model sees one token and no history; that is right only with a cache, which "
            "this model does not have",
            _generate_forgetful,
        ),
        Mutant(
            "does not feed back",
            "every pass runs the prompt alone, so the same token comes out each time: the chosen "
            "token has to be part of the next input",
            _generate_not_fed_back,
        ),
        Mutant(
            "returns the prompt too",
            "the result begins with the prompt; only the new tokens are asked for",
            _generate_with_prompt,
        ),
        Mutant(
            "stop token dropped",
            "generation ends, but the stop token is not in the result; whoever continues the "
            "conversation needs it there",
            _generate_stop_dropped,
        ),
        Mutant(
            "does not stop",
            "a stop token was generated and the loop went on to max_new_tokens",
            _generate_never_stops,
        ),
        Mutant(
            "one token too many",
            "the loop yields max_new_tokens + 1 tokens: the token of the first pass counts as well",
            _generate_one_too_many,
        ),
        Mutant(
            "stops on the prompt",
            "a stop token that stands in the prompt ends the generation; chat templates put such "
            "tokens there, so look at the new token only",
            _generate_stops_on_prompt,
        ),
    ),
    answers=(_generate_plain, _generate_tensors),
)


# ── forward_flops ─────────────────────────────────────────────────────────────────────────────


def _arch(L: int, M: int, H: int, G: int, D: int, F: int, V: int) -> Architecture:
    return Architecture("toy", L, M, H, G, D, F, V, max_context=4096)


def _forward_flops_example(arch: Architecture, num_new: int, num_stored: int) -> Example:
    """Every matrix product of a pass, one by one: 2 · rows · inner · columns."""
    T, S, M = num_new, num_stored + num_new, arch.model_width
    H, G, D = arch.num_query_heads, arch.num_kv_heads, arch.head_dim
    products = []
    for _ in range(arch.num_layers):
        products += [(T, M, H * D), (T, M, G * D), (T, M, G * D)]  # q, k, v
        for _ in range(H):
            products += [(T, D, S), (T, S, D)]  # scores, weighted sum
        products += [(T, H * D, M)]  # o
        products += [(T, M, arch.mlp_width), (T, M, arch.mlp_width), (T, arch.mlp_width, M)]
    products += [(T, M, arch.vocab_size)]
    flops = sum(2 * rows * inner * columns for rows, inner, columns in products)
    shown = (
        f"arch with num_layers {arch.num_layers}, model_width {M}, num_query_heads {H}, "
        f"num_kv_heads {G}, head_dim {D}, mlp_width {arch.mlp_width}, "
        f"vocab_size {arch.vocab_size}\nnum_new = {num_new}\nnum_stored = {num_stored}"
    )
    return Example((arch, num_new, num_stored), flops, shown=shown)


def _forward_flops_token() -> Iterable[Example]:
    yield _forward_flops_example(_arch(1, 6, 3, 3, 2, 7, 11), 1, 0)
    yield _forward_flops_example(_arch(3, 8, 2, 2, 4, 5, 13), 1, 0)


def _forward_flops_groups() -> Iterable[Example]:
    yield _forward_flops_example(_arch(1, 8, 4, 2, 2, 7, 11), 1, 0)
    yield _forward_flops_example(_arch(2, 10, 6, 3, 4, 7, 11), 1, 0)  # H · D is not M


def _forward_flops_square() -> Iterable[Example]:
    yield _forward_flops_example(_arch(1, 6, 3, 3, 2, 7, 11), 2, 0)
    yield _forward_flops_example(_arch(2, 10, 6, 3, 4, 7, 11), 5, 0)


def _forward_flops_stored() -> Iterable[Example]:
    yield _forward_flops_example(_arch(1, 6, 3, 3, 2, 7, 11), 1, 1)
    yield _forward_flops_example(_arch(2, 10, 6, 3, 4, 7, 11), 3, 9)


def _forward_flops_real() -> Iterable[Example]:
    yield _forward_flops_example(_arch(30, 576, 9, 3, 64, 1536, 49152), 500, 0)
    yield _forward_flops_example(_arch(30, 576, 9, 3, 64, 1536, 49152), 1, 499)


def _forward_flops_plain(arch, num_new, num_stored):
    """2 · weights per token, plus 4 · D per pair of query and key in each head."""
    M, H, G, D = arch.model_width, arch.num_query_heads, arch.num_kv_heads, arch.head_dim
    weights = M * H * D + 2 * M * G * D + H * D * M + 3 * M * arch.mlp_width
    pairs = num_new * (num_stored + num_new)
    per_layer = 2 * num_new * weights + 4 * H * D * pairs
    return arch.num_layers * per_layer + 2 * num_new * M * arch.vocab_size


def _forward_flops_listed(arch, num_new, num_stored):
    def matmul(*shape):
        return 2 * math.prod(shape)

    T, S, M = num_new, num_new + num_stored, arch.model_width
    q_width = arch.num_query_heads * arch.head_dim
    kv_width = arch.num_kv_heads * arch.head_dim
    layer = matmul(T, M, q_width + 2 * kv_width) + matmul(T, q_width, M)
    layer += matmul(T, q_width, S) + matmul(T, S, q_width)
    layer += matmul(T, M, arch.mlp_width) * 3
    return layer * arch.num_layers + matmul(T, M, arch.vocab_size)


def _forward_flops_variant(
    arch, T, stored, *, kv_heads=None, pairs=None, layers=None, head_rows=None, mats=3, attend=4
):
    """The count with one term wrong."""
    M, H, D = arch.model_width, arch.num_query_heads, arch.head_dim
    G = arch.num_kv_heads if kv_heads is None else kv_heads
    pairs = T * (stored + T) if pairs is None else pairs
    weights = 2 * M * H * D + 2 * M * G * D + mats * M * arch.mlp_width
    per_layer = 2 * T * weights + attend * H * D * pairs
    rows = T if head_rows is None else head_rows
    return (layers or arch.num_layers) * per_layer + 2 * rows * M * arch.vocab_size


def _forward_flops_no_groups(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new, num_stored, kv_heads=arch.num_query_heads)


def _forward_flops_triangle(arch, num_new, num_stored):
    pairs = sum(num_stored + i for i in range(1, num_new + 1))
    return _forward_flops_variant(arch, num_new, num_stored, pairs=pairs)


def _forward_flops_one_row_of_logits(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new, num_stored, head_rows=1)


def _forward_flops_stored_ignored(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new, num_stored, pairs=num_new**2)


def _forward_flops_all_rerun(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new + num_stored, 0)


def _forward_flops_two_matrices(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new, num_stored, mats=2)


def _forward_flops_weights_only(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new, num_stored, attend=0)


def _forward_flops_multiplications(arch, num_new, num_stored):
    return _forward_flops_variant(arch, num_new, num_stored) // 2


FORWARD_FLOPS = Task(
    name="forward_flops",
    chapter=1,
    title="FLOPs of one pass",
    minutes=15,
    points=4,
    level=2,
    spec=(
        "FLOPs of all matrix products in one pass of num_new tokens that also read the keys and "
        "values of num_stored earlier ones: a multiplication and an addition are two, the whole "
        "T × S block of scores is computed before masking, and every new token gets logits."
    ),
    signature="forward_flops(arch: Architecture, num_new: int, num_stored: int) -> int",
    properties=(
        Property("one token, nothing stored: every matrix once", _forward_flops_token),
        Property("k and v have num_kv_heads heads, and H · D need not be M", _forward_flops_groups),
        Property("several tokens: T × T scores, T rows of logits", _forward_flops_square),
        Property("stored tokens are read by attention and nothing else", _forward_flops_stored),
        Property("the count is exact at the size of a real model", _forward_flops_real),
    ),
    hints=(
        "A product of [a, b] by [b, c] is 2abc FLOPs. A layer has q, k, v, o, gate, up and down.",
        "Attention adds two products per head: [T, D] by [D, S], and [T, S] by [S, D]. S = "
        "num_stored + num_new.",
        "layers · (2T · weights of a layer + 4 · H · D · T · S) + 2 · T · M · V.",
    ),
    mutants=(
        Mutant(
            "k and v at full width",
            "k and v are counted with one head per query head; under grouped attention they have "
            "num_kv_heads heads",
            _forward_flops_no_groups,
        ),
        Mutant(
            "half of the square",
            "only the visible half of the scores is counted; the plain implementation computes "
            "all T × S and masks, and skipping the rest takes a kernel that knows how",
            _forward_flops_triangle,
        ),
        Mutant(
            "one row of logits",
            "the head is counted for one token; asked for is a pass that gives logits for every "
            "new token (a loop that needs only the last row can save the others)",
            _forward_flops_one_row_of_logits,
        ),
        Mutant(
            "stored keys ignored",
            "attention is counted as T × T; the new tokens also read every stored key",
            _forward_flops_stored_ignored,
        ),
        Mutant(
            "stored tokens run again",
            "the stored tokens are counted as inputs of the pass; only attention reads them, "
            "which is the whole point of storing them",
            _forward_flops_all_rerun,
        ),
        Mutant(
            "two MLP matrices",
            "a SwiGLU block has three matrices: gate, up and down",
            _forward_flops_two_matrices,
        ),
        Mutant(
            "weights only",
            "2 × parameters per token leaves out scores and weighted sum, the only part that "
            "grows with the context",
            _forward_flops_weights_only,
        ),
        Mutant(
            "multiplications only",
            "a multiplication and an addition are two FLOPs; this is the number of "
            "multiply-accumulates",
            _forward_flops_multiplications,
        ),
    ),
    answers=(_forward_flops_plain, _forward_flops_listed),
)


# ── cost_per_million_tokens ───────────────────────────────────────────────────────────────────


def _cost_examples(*cases: tuple[str, int, str, str]) -> list[Example]:
    """Exact fractions: dollars of an hour over millions of tokens of an hour."""
    examples = []
    for dollars, num_gpus, rate, busy in cases:
        paid = Fraction(dollars) * num_gpus
        millions = Fraction(rate) * Fraction(busy) * 3600 / 1_000_000
        args = (float(dollars), num_gpus, float(rate), float(busy))
        examples.append(Example(args, float(paid / millions)))
    return examples


def _cost_plain(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    """What an hour costs over what an hour yields."""
    tokens_per_hour = tokens_per_second * busy_share * 3600
    return dollars_per_gpu_hour * num_gpus / tokens_per_hour * 1e6


def _cost_by_seconds(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    seconds_for_a_million = 1_000_000 / (tokens_per_second * busy_share)
    return seconds_for_a_million / 3600 * num_gpus * dollars_per_gpu_hour


def _cost_one_gpu(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    return _cost_plain(dollars_per_gpu_hour, 1, tokens_per_second, busy_share)


def _cost_always_busy(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    return _cost_plain(dollars_per_gpu_hour, num_gpus, tokens_per_second, 1)


def _cost_idle_is_cheap(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    return _cost_plain(dollars_per_gpu_hour, num_gpus, tokens_per_second, 1) * busy_share


def _cost_inverted(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    return 1 / _cost_plain(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share)


def _cost_hour_as_second(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share):
    return _cost_plain(dollars_per_gpu_hour, num_gpus, tokens_per_second, busy_share) * 3600


COST_PER_MILLION_TOKENS = Task(
    name="cost_per_million_tokens",
    chapter=1,
    title="Dollars per million tokens",
    minutes=3,
    points=1,
    level=1,
    spec=(
        "Dollars per million tokens of a server of num_gpus GPUs that all together yield "
        "tokens_per_second while busy, are busy for busy_share of the time, and are paid for all "
        "of it."
    ),
    signature=(
        "cost_per_million_tokens(dollars_per_gpu_hour: float, num_gpus: int, "
        "tokens_per_second: float, busy_share: float) -> float"
    ),
    properties=(
        Property(
            "one busy GPU: dollars per hour over tokens per hour",
            lambda: _cost_examples(("3.6", 1, "1000", "1"), ("2.5", 1, "400", "1")),
        ),
        Property(
            "every GPU is paid for; the throughput is the server's",
            lambda: _cost_examples(("3.6", 2, "1000", "1"), ("2.5", 8, "2400", "1")),
        ),
        Property(
            "idle time is paid for as well",
            lambda: _cost_examples(("3.6", 1, "1000", "0.5"), ("1.99", 4, "5500", "0.35")),
        ),
    ),
    hints=(
        "What does the server cost in an hour, and how many tokens does it yield in that hour?",
        "An hour costs dollars · GPUs and yields tokens_per_second · busy_share · 3,600 tokens.",
        "Divide the first by the second and multiply by a million.",
    ),
    mutants=(
        Mutant(
            "GPUs not counted",
            "the price is per GPU and the throughput is the whole server's, so the cost grows "
            "with num_gpus; multiplying both, or neither, cancels it",
            _cost_one_gpu,
        ),
        Mutant(
            "idle time not counted",
            "tokens come only in the busy part of the hour, and all of the hour is paid",
            _cost_always_busy,
        ),
        Mutant(
            "idle time made it cheaper",
            "the cost was multiplied by busy_share; fewer tokens for the same money cost more "
            "each, so divide",
            _cost_idle_is_cheap,
        ),
        Mutant(
            "upside down",
            "this is millions of tokens per dollar",
            _cost_inverted,
        ),
        Mutant(
            "an hour taken as a second",
            "the price is per hour and the throughput per second: a factor of 3,600 is missing",
            _cost_hour_as_second,
        ),
    ),
    answers=(_cost_plain, _cost_by_seconds),
    atol=0.0,
    rtol=1e-6,
)
