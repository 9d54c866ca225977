"""Vision transformer: an image as a sequence of patches, read by self-attention."""

import math
import warnings
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnrepro.nn.position import rotary, sinusoidal
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.theory.image_models import ImageShape, check_attention, patch_grid, patch_sides

# With fewer tokens than this there is little to attend to.
FEW_TOKENS = 16


class PatchEmbedding(nn.Module):
    """Cuts an image into patches, row by row, and maps the pixels of each to a token with one linear layer.

    The same as a convolution whose kernel and stride are the patch, but for the pixels that such a convolution drops
    in silence where the patch does not divide the image.

    Args:
        image_shape: channels, height and width.
        embed_dim: components of a token.
        patch: side of a patch, or its height and width.

    Raises:
        ValueError: a patch that does not divide the image.

    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, section 3.1.
    """

    def __init__(self, image_shape: ImageShape, embed_dim: int, patch: int | Sequence[int]) -> None:
        super().__init__()
        self.grid = patch_grid(image_shape, patch)
        self.patch = patch_sides(patch)
        self.projection = nn.Linear(image_shape[0] * math.prod(self.patch), embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Tokens ``[n, rows * columns, embed_dim]`` of images ``[n, channels, height, width]``."""
        (rows, columns), (height, width) = self.grid, self.patch
        n, channels = images.shape[:2]
        patches = images.reshape(n, channels, rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
        tokens: Tensor = self.projection(patches.reshape(n, rows * columns, -1))
        return tokens


def sinusoidal_2d(rows: int, columns: int, embed_dim: int) -> Tensor:
    """Sinusoids of the row in the first half of the components and of the column in the second.

    Returns:
        Code ``[rows * columns, embed_dim]``, row by row.

    Source: Beyer et al. 2022, Better plain ViT baselines for ImageNet-1k, section 2 (there interleaved).
    """
    half = embed_dim // 2
    by_row = sinusoidal(rows, half)[:, None].expand(-1, columns, -1)
    by_column = sinusoidal(columns, half).expand(rows, -1, -1)
    return torch.cat([by_row, by_column], dim=-1).flatten(0, 1)


class AxialRotary(nn.Module):
    """Turns the first half of every head's components by the token's row and the second half by its column.

    The dot product of a query and a key then depends on how many rows and columns lie between them.

    Args:
        num_heads: heads that lie side by side in ``embed_dim``; head_dim must be a multiple of 4.
        row: row of each token ``[length]``.
        column: column of each token ``[length]``.

    Source: Heo et al. 2024, Rotary Position Embedding for Vision Transformer, section 3.2 (axial, base 100).
    """

    def __init__(self, num_heads: int, row: Tensor, column: Tensor) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.row, self.column = nn.Buffer(row, persistent=False), nn.Buffer(column, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Turned queries or keys, ``[..., length, embed_dim]`` as given."""
        heads = x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(-2, -3)
        by_row, by_column = heads.chunk(2, dim=-1)
        turned = [rotary(by_row, self.row, base=100.0), rotary(by_column, self.column, base=100.0)]
        return torch.cat(turned, dim=-1).transpose(-2, -3).flatten(-2)


class TurnedLinear(nn.Linear):
    """A projection to queries or keys, which are then turned by their position."""

    def __init__(self, embed_dim: int, turn: AxialRotary) -> None:
        super().__init__(embed_dim, embed_dim)
        self.turn = turn

    def forward(self, x: Tensor) -> Tensor:
        """``[..., length, embed_dim]`` to the same shape."""
        turned: Tensor = self.turn(super().forward(x))
        return turned


class TokenAttention(SelfAttention):
    """Self-attention with biases, with a turn of queries and keys where given, through torch's fused kernel or not.

    Args:
        embed_dim: components of a token.
        num_heads: must divide ``embed_dim``.
        turn: applied to projected queries and keys.
        fused: ``scaled_dot_product_attention`` in place of the explicit product, the same numbers within round-off.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, turn: AxialRotary | None = None, fused: bool = True) -> None:
        super().__init__(embed_dim, num_heads)
        self.fused = fused
        if turn is not None:
            self.w_query, self.w_key = (TurnedLinear(embed_dim, turn) for _ in range(2))
        for projection in (self.w_query, self.w_key, self.w_value, self.w_out):
            projection.bias = nn.Parameter(torch.zeros(embed_dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Outputs ``[..., length, embed_dim]``; explicit with a mask, whose empty rows kernels treat differently."""
        if mask is not None or not self.fused:
            return super().forward(x, mask)
        query, key, value = (self._heads(part(x)) for part in (self.w_query, self.w_key, self.w_value))
        heads = scaled_dot_product_attention(query, key, value)
        out: Tensor = self.w_out(heads.transpose(-2, -3).flatten(-2))
        return out


class Block(nn.Module):
    """Self-attention and a two-layer MLP, each with LayerNorm and a residual connection.

    With ``norm_first`` x + f(norm(x)), as in ViT; without, norm(x + f(x)), as in Vaswani et al. 2017.

    Args:
        attention: the block's self-attention.
        embed_dim: components of a token.
        hidden: width of the MLP.
        norm_first: pre-LN or post-LN.
        dropout: after the attention's output and after both layers of the MLP (Dosovitskiy et al. 2021, appendix B.1).
    """

    def __init__(
        self, attention: TokenAttention, embed_dim: int, hidden: int, *, norm_first: bool, dropout: float
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = attention
        self.attention_norm, self.mlp_norm = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.attention_dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            *(nn.Linear(embed_dim, hidden), nn.GELU(), nn.Dropout(dropout)),
            *(nn.Linear(hidden, embed_dim), nn.Dropout(dropout)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[n, length, embed_dim]`` to tokens of the same shape."""
        if self.norm_first:
            x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
            out: Tensor = x + self.mlp(self.mlp_norm(x))
            return out
        x = self.attention_norm(x + self.attention_dropout(self.attention(x)))
        out = self.mlp_norm(x + self.mlp(x))
        return out

    def attention_weights(self, x: Tensor) -> Tensor:
        """What `forward` attends to: weights ``[n, num_heads, length, length]``."""
        return self.attention.weights(self.attention_norm(x) if self.norm_first else x)


class ViT(nn.Module):
    """Patches, positions, blocks, one token or the mean of all of them, a linear head.

    Args:
        image_shape: channels, height and width.
        num_classes: logits.
        patch: side of a patch, or its height and width; must divide the image.
        embed_dim: components of a token.
        depth: number of blocks.
        num_heads: must divide ``embed_dim``.
        mlp_ratio: hidden units of a block's MLP for each component.
        norm_first: pre-LN, with one more LayerNorm after the last block, or post-LN.
        position: "none", "learned", "sinusoidal" (of the index of the patch) or "sinusoidal_2d", added to the patches;
            or "rotary", which turns queries and keys and adds nothing.
        pooling: "mean" over the patches, or "class": a learned token, before the patches and without a position, is
            read out.
        dropout: after positions are added, and in every block.
        fused: attention through torch's fused kernel.

    Raises:
        ValueError: a patch that does not divide the image, heads that do not divide ``embed_dim``, an unknown choice.

    Warns:
        UserWarning: fewer than 16 tokens.

    Source: Dosovitskiy et al. 2021, section 3.1; mean pooling: appendix D.3.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        patch: int | Sequence[int] = 4,
        embed_dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        mlp_ratio: int = 2,
        norm_first: bool = True,
        position: str = "learned",
        pooling: str = "mean",
        dropout: float = 0.0,
        fused: bool = True,
    ) -> None:
        super().__init__()
        check_attention(embed_dim, num_heads, position, pooling)
        rows, columns = patch_grid(image_shape, patch)
        if rows * columns < FEW_TOKENS:
            warnings.warn(f"patch={patch} leaves {rows * columns} tokens, fewer than {FEW_TOKENS}", stacklevel=2)
        self.patches = PatchEmbedding(image_shape, embed_dim, patch)
        self.position = self._added(position, rows, columns, embed_dim)
        self.class_token = nn.Parameter(_small(embed_dim)) if pooling == "class" else None
        self.dropout = nn.Dropout(dropout)
        turn = self._turn(rows, columns, num_heads) if position == "rotary" else None
        self.blocks = nn.ModuleList(
            Block(
                TokenAttention(embed_dim, num_heads, turn=turn, fused=fused),
                embed_dim,
                mlp_ratio * embed_dim,
                norm_first=norm_first,
                dropout=dropout,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(embed_dim) if norm_first else nn.Identity()
        self.head = nn.Linear(embed_dim, num_classes)

    @staticmethod
    def _added(position: str, rows: int, columns: int, embed_dim: int) -> Tensor | None:
        """Code ``[rows * columns, embed_dim]`` that is added to the patches."""
        if position == "learned":
            return nn.Parameter(_small(rows * columns, embed_dim))
        if position == "sinusoidal":
            return nn.Buffer(sinusoidal(rows * columns, embed_dim), persistent=False)
        if position == "sinusoidal_2d":
            return nn.Buffer(sinusoidal_2d(rows, columns, embed_dim), persistent=False)
        return None

    def _turn(self, rows: int, columns: int, num_heads: int) -> AxialRotary:
        index = torch.arange(rows * columns)
        row, column = index // columns, index % columns
        if self.class_token is not None:  # stays as it is: a turn by zero
            row, column = (nn.functional.pad(axis, (1, 0)) for axis in (row, column))
        return AxialRotary(num_heads, row, column)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, num_classes]`` of images ``[n, channels, height, width]``."""
        x = self.tokens(images)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits: Tensor = self.head(x.mean(dim=1) if self.class_token is None else x[:, 0])
        return logits

    def tokens(self, images: Tensor) -> Tensor:
        """What the first block reads, ``[n, length, embed_dim]``; a class token comes first."""
        x = self.patches(images)
        if self.position is not None:
            x = x + self.position
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        dropped: Tensor = self.dropout(x)
        return dropped

    def attention_maps(self, images: Tensor) -> Tensor:
        """Attention weights of every layer, ``[depth, n, num_heads, length, length]``: row query, column key."""
        x, maps = self.tokens(images), []
        for block in cast("list[Block]", list(self.blocks)):
            maps.append(block.attention_weights(x))
            x = block(x)
        return torch.stack(maps)


def _small(*shape: int) -> Tensor:
    """Start of learned tokens and positions: normal, cut at two, with standard deviation 0.02."""
    return nn.init.trunc_normal_(torch.empty(shape), std=0.02, a=-0.04, b=0.04)
