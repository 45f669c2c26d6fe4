"""Numbers of weights of the parts that layers are made of."""


def linear(inputs: int, outputs: int, bias: bool = False) -> int:
    """A matrix, and a bias for each output."""
    return inputs * outputs + (outputs if bias else 0)


def gated_mlp(width: int, inner: int, bias: bool = False) -> int:
    """``down(act(gate(x)) * up(x))``: three matrices. arXiv:2002.05202."""
    return 2 * linear(width, inner, bias) + linear(inner, width, bias)


def plain_mlp(width: int, inner: int, bias: bool = False) -> int:
    """``down(act(up(x)))``: two matrices."""
    return linear(width, inner, bias) + linear(inner, width, bias)


def attention(
    width: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
) -> int:
    """Projections to queries, keys and values, and back."""
    return (
        linear(width, query_heads * head_dim, qkv_bias)
        + 2 * linear(width, kv_heads * head_dim, qkv_bias)
        + linear(query_heads * head_dim, width, out_bias)
    )
