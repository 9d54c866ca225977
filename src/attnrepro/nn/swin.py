"""Attention within windows of a map, within shifted windows, and the pair of blocks that alternates the two."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnrepro.nn.attention import attention_logits, attention_weights


def relative_index(window: int) -> Tensor:
    """Where the bias of each pair of a window's places stands in a table of ``(2 window - 1)²`` offsets.

    Returns:
        ``[window², window²]``; places are numbered row by row, rows are queries. Offsets run from -(window - 1) to
        window - 1 in either direction, those between rows first.
    """
    places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
    offset = places[:, None] - places + window - 1
    return offset[..., 0] * (2 * window - 1) + offset[..., 1]


class WindowSelfAttention(nn.Module):
    """Multi-head self-attention within windows of ``window`` x ``window`` places that do not overlap (W-MSA, SW-MSA).

    With a ``shift`` the map is first rolled by it, up and to the left, and rolled back afterwards, so that windows lie
    across the edges of those without one. Windows that then hold places from two ends of the map are divided by a mask
    (``masked``; without it the map is a torus). A map that the window does not divide is filled up below and to the
    right with places that nobody attends to; where a map is one window in a direction it is not shifted in that one.

    FLOPs on N places (filled up) and C channels: 8 N C² + 4 N window² C. Parameters: 4 C² + 4 C, and
    (2 window - 1)² num_heads of relative bias.

    Args:
        channels: C.
        num_heads: divides C.
        window: side of a window.
        shift: 0 up to window - 1.
        relative_bias: a learned number for each head and offset between query and key, added to the logits.
        masked: as in the paper, or cyclic windows without a mask.

    Raises:
        ValueError: a size below 1, heads that do not divide the channels, or a shift outside the window.

    Source: Liu et al. 2021, Swin Transformer, section 3.2. Their code adds -100 to masked logits, here it is -inf.
    """

    relative: Tensor

    def __init__(
        self,
        channels: int,
        *,
        num_heads: int,
        window: int,
        shift: int = 0,
        relative_bias: bool = True,
        masked: bool = True,
    ) -> None:
        super().__init__()
        if channels < 1 or num_heads < 1 or channels % num_heads:
            raise ValueError(f"num_heads={num_heads} must be 1 or more and divide channels={channels}")
        if window < 1:
            raise ValueError(f"window={window} must be 1 or more")
        if not 0 <= shift < window:
            raise ValueError(f"shift={shift} must be 0 or more and below window={window}")
        self.num_heads, self.window, self.shift, self.masked = num_heads, window, shift, masked
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.bias: nn.Parameter | None = None
        if relative_bias:
            self.bias = nn.Parameter(torch.empty((2 * window - 1) ** 2, num_heads))
            nn.init.trunc_normal_(self.bias, std=0.02)
        self.register_buffer("relative", relative_index(window), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of all places, without a residual: ``[batch, channels, height, width]``, as ``x``."""
        height, width = x.shape[-2:]
        side = self.window
        below, right = -height % side, -width % side
        shift = tuple(0 if size + more == side else self.shift for size, more in ((height, below), (width, right)))
        tokens = pad(x, (0, right, 0, below)).roll((-shift[0], -shift[1]), (-2, -1))
        batch, channels, high, wide = tokens.shape
        rows, columns, heads = high // side, wide // side, self.num_heads
        # [batch * windows, side * side, channels]
        cut = tokens.reshape(batch, channels, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
        projected = self.qkv(cut.reshape(-1, side * side, channels))
        query, key, value = projected.reshape(-1, side * side, 3, heads, channels // heads).permute(2, 0, 3, 1, 4)
        logits = attention_logits(query, key)
        if self.bias is not None:
            logits = logits + self.bias[self.relative].permute(2, 0, 1)
        apart = self._apart((height, below), (width, right), shift)
        if bool(apart.any()):
            by_window = logits.reshape(batch, rows * columns, *logits.shape[1:])
            logits = by_window.masked_fill(apart[:, None].to(x.device), -torch.inf).reshape(logits.shape)
        mixed = self.out((attention_weights(logits) @ value).transpose(-2, -3).flatten(-2))
        back = mixed.reshape(batch, rows, columns, side, side, channels).permute(0, 5, 1, 3, 2, 4)
        out: Tensor = back.reshape(tokens.shape).roll(shift, (-2, -1))[..., :height, :width]
        return out

    def _apart(self, rows: tuple[int, int], columns: tuple[int, int], shift: tuple[int, ...]) -> Tensor:
        """Pairs of a window's places that must not see each other: ``[windows, window², window²]``, rows are queries.

        ``rows`` and ``columns`` are places and filling. A place's region is 0, or 1 where the roll brought it from the
        other end, or 2 where it is filling; places of different regions are apart. Filling sees filling, so that no
        row of the weights is empty.
        """
        region = []
        for (size, more), by in zip((rows, columns), shift, strict=True):
            kind = torch.full((size + more,), 2)
            kind[:size] = 0
            if self.masked:
                kind[:by] = 1
            region.append(kind.roll(-by))
        side = self.window
        both = region[0][:, None] * 3 + region[1]
        ids = both.reshape(both.shape[0] // side, side, -1, side).transpose(1, 2).reshape(-1, side * side)
        return ids[:, :, None] != ids[:, None, :]


class SwinBlock(nn.Module):
    """x + attention within windows of LayerNorm(x), then the same with an MLP of one hidden layer.

    Maps ``[batch, channels, height, width]`` to maps of the same shape. FLOPs: those of `WindowSelfAttention` and
    4 ``expansion`` N C². Parameters: those of `WindowSelfAttention`, 2 ``expansion`` C² + (``expansion`` + 1) C, and
    4 C of the two norms.

    Source: Liu et al. 2021, Swin Transformer, section 3.2 and figure 3 b.
    """

    def __init__(
        self,
        channels: int,
        *,
        num_heads: int,
        window: int,
        shift: int = 0,
        expansion: int = 4,
        relative_bias: bool = True,
        masked: bool = True,
    ) -> None:
        super().__init__()
        if expansion < 1:
            raise ValueError(f"expansion={expansion} must be 1 or more")
        self.attention = WindowSelfAttention(
            channels, num_heads=num_heads, window=window, shift=shift, relative_bias=relative_bias, masked=masked
        )
        self.attention_norm, self.mlp_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, expansion * channels), nn.GELU(), nn.Linear(expansion * channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map to map of the same shape."""
        normed = self.attention_norm(x.movedim(1, -1)).movedim(-1, 1)
        x = x + self.attention(normed)
        out: Tensor = x + self.mlp(self.mlp_norm(x.movedim(1, -1))).movedim(-1, 1)
        return out


class SwinPair(nn.Sequential):
    """A block with windows and one with windows shifted by half a window (rounded down).

    Maps ``[batch, channels, height, width]`` to maps of the same shape; costs and parameters are twice those of
    `SwinBlock`.

    Raises:
        ValueError: a window below 2, which has no half.

    Source: Liu et al. 2021, Swin Transformer, equations 3.
    """

    def __init__(
        self,
        channels: int,
        *,
        num_heads: int,
        window: int,
        expansion: int = 4,
        relative_bias: bool = True,
        masked: bool = True,
    ) -> None:
        if window < 2:
            raise ValueError(f"window={window} must be 2 or more, so that it can be shifted by half of it")
        super().__init__(
            *(
                SwinBlock(
                    channels,
                    num_heads=num_heads,
                    window=window,
                    shift=shift,
                    expansion=expansion,
                    relative_bias=relative_bias,
                    masked=masked,
                )
                for shift in (0, window // 2)
            )
        )


class PatchMerging(nn.Module):
    """Four neighbours become one place: ``[batch, C, height, width]`` to ``[batch, 2 C, height / 2, width / 2]``.

    The C channels of the four are put side by side, normed, and mapped to 2 C without bias: 8 C² + 8 C parameters,
    4 N C² FLOPs on N places.

    Raises:
        ValueError: an odd height or width (in ``forward``).

    Source: Liu et al. 2021, Swin Transformer, section 3.1.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * channels)
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps of half the height and width."""
        height, width = x.shape[-2:]
        if height % 2 or width % 2:
            raise ValueError(f"height={height} and width={width} must be even to be halved")
        four = torch.cat([x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)], 1)
        out: Tensor = self.reduction(self.norm(four.movedim(1, -1))).movedim(-1, 1)
        return out
