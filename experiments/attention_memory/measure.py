"""attention_memory, measured: shapes and storages on torch's meta device, and what the allocator records."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.results.rows import Row
from attnrepro.tables.attention_memory import table
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.memory import memory_of

# Kernels that never write the score matrix: which of them a device has depends on its kind and on the dtype.
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
# A short call before a measured one: libraries take their workspace in it.
WARM_UP = 32


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    if cell.params.study == "sizes":
        sizes = Sizes(cell)
        return Job(sizes, batches(table.images(cell.params)))
    peaks = Peaks(cell)
    return Job(peaks, batches(cell.params.lengths))


# --- sizes: torch's own shapes and storages, without the memory ---


def patch_tokens(side: int, patch: int, embed_dim: int) -> Tensor:
    """The grid of tokens ``[1, embed_dim, height, width]`` of a square image, on the meta device."""
    embed = nn.Conv2d(3, embed_dim, patch, stride=patch, device="meta")
    out: Tensor = embed(torch.empty(1, 3, side, side, device="meta"))
    return out


def score_matrix(length: int, dtype: torch.dtype) -> Tensor:
    """Weights ``[length, length]`` of one head on the meta device."""
    query, key = (torch.empty(length, 1, device="meta", dtype=dtype) for _ in range(2))
    return attention_weights(attention_logits(query, key))


def saved_score_bytes(layers: nn.Module, x: Tensor) -> int:
    """Bytes of the matrices ``[..., length, length]`` that autograd keeps for the backward pass, each storage once."""
    length = x.shape[-2]
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.shape[-2:] == (length, length):
            alive.append(tensor)  # a freed storage would lend its place to the next one
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layers(x)
    del out
    return sum(kept.values())


def scores_computed(queries: int, length: int, head_dim: int) -> int:
    """Score entries of one head, from the FLOPs of its two products: 2 head_dim for each entry in either."""
    query = torch.empty(1, 1, queries, head_dim, device="meta")
    key, value = (torch.empty(1, 1, length, head_dim, device="meta") for _ in range(2))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(query, key, value)
    return counter.get_total_flops() // (2 * 2 * head_dim)


class Sizes(Measurement):
    """Every image size once."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """Tokens, entries and bytes of one image size; for patches also what a whole model keeps."""
        side, patch = batch
        p = self.cell.params
        at: dict[str, object] = {"side": side, "patch": patch}
        grid = patch_tokens(side, patch, p.embed_dim)
        length = grid.shape[-2] * grid.shape[-1]
        self._add("patches_per_side", grid.shape[-1], at)
        self._add("tokens", length, at)
        entries = score_matrix(length, torch.float32).numel()
        self._add("score_entries", entries, at)
        for dtype in p.dtypes:
            size = score_matrix(length, getattr(torch, dtype)).untyped_storage().nbytes()
            for prefix, base in (("binary", 1 << 10), ("decimal", 10**3)):
                self._add_size(size, base, {**at, "dtype": dtype, "prefix": prefix})
        if patch == 1:
            return
        if (side, 1) in table.images(p):
            pixels = score_matrix(patch_tokens(side, 1, 1).flatten(2).shape[-1], torch.float32).numel()
            self._add("patching_factor", pixels / entries, at)
        longer = score_matrix(2 * length, torch.float32).numel()
        larger = score_matrix(patch_tokens(2 * side, patch, 1).flatten(2).shape[-1], torch.float32).numel()
        self._add("entries_factor", longer / entries, {**at, "doubled": "length"})
        self._add("entries_factor", larger / entries, {**at, "doubled": "side"})
        self._add("scores_computed", scores_computed(length, length, p.head_dim), {**at, "queries": "all"})
        self._add("scores_computed", scores_computed(1, length, p.head_dim), {**at, "queries": "one"})
        self._store(length, at)

    def _store(self, length: int, at: dict[str, object]) -> None:
        p = self.cell.params
        for dtype in p.dtypes:
            with torch.device("meta"):
                layers = nn.Sequential(*(SelfAttention(p.embed_dim, p.num_heads) for _ in range(p.depth)))
            layers = layers.to(getattr(torch, dtype))
            for size in p.batch_sizes:
                x = torch.empty(size, length, p.embed_dim, device="meta", dtype=getattr(torch, dtype))
                gib = saved_score_bytes(layers, x) / (1 << 30)
                self._add("stored_size", gib, {**at, "dtype": dtype, "batch": size}, "GiB")

    def _add_size(self, size: int, base: int, axes: dict[str, object]) -> None:
        units = table.UNITS[str(axes["prefix"])]
        value, power = float(size), 0
        while value >= base:
            value, power = value / base, power + 1
        self._add("score_size", value, axes, units[power])

    def _add(self, quantity: str, value: float, axes: dict[str, object], unit: str = "") -> None:
        seed = self.cell.seeds[0]
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=seed, n=1, unit=unit))

    def rows(self) -> list[Row]:
        """Every size."""
        return self.found


# --- peaks: real tensors, and the allocator's record ---


def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention step by step, as its formula is written."""
    return attention_weights(attention_logits(query, key)) @ value


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by a kernel that goes through the keys block by block."""
    with sdpa_kernel(FUSED):
        return scaled_dot_product_attention(query, key, value)


ATTENTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"naive": naive, "fused": fused}


class Peaks(Measurement):
    """Peak memory of either attention, forward and with its backward pass."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []
        self.warm = False

    def test_step(self, batch: int, batch_idx: int) -> None:
        """One length, on one thread: of its block of scores a fused kernel has one for each thread."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if not self.warm:
                self._measure(WARM_UP)
                self.found, self.warm = [], True
            self._measure(batch)
        finally:
            torch.set_num_threads(threads)

    def _inputs(self, length: int) -> list[Tensor]:
        """Query, key, value and the gradient of the output, ``[1, num_heads, length, head_dim]`` each."""
        p = self.cell.params
        stream = generator(self.cell.seeds[0], table.NAME, length)
        drawn = torch.randn(4, 1, p.num_heads, length, p.head_dim, generator=stream)
        return [part.to(device=self.device, dtype=getattr(torch, p.dtype)) for part in drawn.unbind()]

    def _measure(self, length: int) -> None:
        p = self.cell.params
        here: dict[str, object] = {"length": length, "dtype": p.dtype}
        storage = score_matrix(length, getattr(torch, p.dtype)).untyped_storage()
        self._add("matrix_bytes", p.num_heads * storage.nbytes(), here, statistic="exact")
        naive_out, fused_out = (self._attend(name, length, here).double() for name in table.ATTENTIONS)
        error = float((fused_out - naive_out).abs().max() / naive_out.abs().max())
        self._add("output_difference_eps", error / table.EPS[p.dtype], here, unit="")

    def _attend(self, name: str, length: int, here: dict[str, object]) -> Tensor:
        """Measure one attention at one length; its output."""
        *qkv, gradient = self._inputs(length)

        def forward() -> Tensor:
            return ATTENTIONS[name](*qkv)

        at = {**here, "attention": name}
        with torch.no_grad():
            self._add("peak_bytes", memory_of(forward, self.device).peak, {**at, "phase": "forward"})
            out = forward()
        with torch.enable_grad():
            for part in qkv:
                part.requires_grad_()
            self._add("held_bytes", memory_of(forward, self.device).held, {**at, "phase": "training"})
            step = memory_of(lambda: forward().backward(gradient), self.device)
        self._add("peak_bytes", step.peak, {**at, "phase": "training"})
        return out

    def _add(
        self, quantity: str, value: float, axes: dict[str, object], *, statistic: str = "value", unit: str = "B"
    ) -> None:
        """One number. A peak is the same in every run on one machine, another on another device: no exact value."""
        seed = self.cell.seeds[0]
        self.found.append(Row(quantity, value, axes, statistic=statistic, seed=seed, n=1, unit=unit))

    def rows(self) -> list[Row]:
        """Every length."""
        return self.found
