"""How much memory attention takes: tokens of an image, entries and bytes of score matrices, and the peak.

Sizes are those of the score matrix softmax(Q K^T / sqrt(head_dim)), ``[length, length]`` for one head. Peaks are above
what is there before: queries, keys and values, ``[num_heads, length, head_dim]`` each, and the gradient of the output.

Sources: document 004, section 2.3; document 000, section on the cost of length; Dao et al. 2022, FlashAttention,
sections 2.2 and 3.1 (what is stored with and without the matrix).
"""

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Units by prefix, each so many times the one before.
PREFIXES = {"binary": (1024, ("B", "KiB", "MiB", "GiB", "TiB")), "decimal": (1000, ("B", "kB", "MB", "GB", "TB"))}
GIB: int = 2**30


def patches_per_side(side: int, patch: int) -> int:
    """Patches along one side of a square image.

    Raises:
        ValueError: a patch that does not divide the side.
    """
    if patch < 1 or side < 1 or side % patch:
        raise ValueError(f"patch={patch} must divide side={side}")
    return side // patch


def tokens(side: int, patch: int) -> int:
    """Tokens of a square image cut into square patches, without a class token; patch 1: one a pixel."""
    return patches_per_side(side, patch) ** 2


def score_entries(side: int, patch: int) -> int:
    """Entries of the score matrix of one head."""
    return tokens(side, patch) ** 2


def score_bytes(side: int, patch: int, dtype: str) -> int:
    """Bytes of the score matrix of one head."""
    return ITEM_BYTES[dtype] * score_entries(side, patch)


def patching_factor(patch: int) -> int:
    """How many times fewer entries patches have than pixels: patch^2 tokens fewer, squared."""
    return int(patch**4)


def stored_bytes(side: int, patch: int, dtype: str, *, num_heads: int, depth: int, batch: int) -> int:
    """Bytes of weights that explicit attention keeps for the backward pass: one matrix a head, layer and image."""
    return batch * depth * num_heads * score_bytes(side, patch, dtype)


def in_unit(size: int, prefix: str) -> tuple[float, str]:
    """A number of bytes in the largest unit of a prefix that leaves 1 or more."""
    base, units = PREFIXES[prefix]
    power = max(n for n in range(len(units)) if n == 0 or size >= base**n)
    return size / base**power, units[power]


def naive_peak(phase: str, num_heads: int, length: int, head_dim: int, dtype: str) -> int:
    """Peak bytes of ``softmax(q k^T / sqrt(head_dim)) v`` computed step by step.

    Forward, two score matrices at a time: products and scaled logits, then logits and weights. Training, three: in the
    backward pass of softmax its result, the gradient of it and the gradient of the logits, beside the output and the
    gradient of the values, ``[num_heads, length, head_dim]`` each.
    """
    item = ITEM_BYTES[dtype]
    scores, values = (num_heads * length * n * item for n in (length, head_dim))
    if phase == "forward":
        return max(2 * scores, scores + values)
    return 3 * scores + 2 * values


def naive_held(num_heads: int, length: int, head_dim: int, dtype: str) -> int:
    """Bytes left between the forward and the backward pass of the same: the weights and the output."""
    return num_heads * length * (length + head_dim) * ITEM_BYTES[dtype]
