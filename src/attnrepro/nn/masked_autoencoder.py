"""Masked autoencoder: a ViT reads a few patches of an image, and a light decoder paints the pixels of the others."""

import torch
from torch import Tensor, nn

from attnrepro.nn.vit import Block, TokenAttention, ViT, sinusoidal_2d


class MaskedAutoencoder(nn.Module):
    """What a ViT learns without labels: to tell from some patches of an image how the others look.

    The encoder gets the visible patches with their positions and nothing else: no token stands for a masked patch. The
    decoder gets what the encoder made of them, puts one learned token at every masked place, adds positions of its own
    and is thrown away afterwards.

    Args:
        encoder: a ViT whose positions are added to its patches and whose patches are averaged; its head is not used.
        decoder_dim: components of a decoder's token, an even number.
        decoder_depth: blocks of the decoder.
        num_heads: of the decoder's blocks; must divide ``decoder_dim``.

    Raises:
        ValueError: an encoder with a class token or rotary positions, whose tokens cannot be left out at will.

    Source: He et al. 2022, Masked Autoencoders Are Scalable Vision Learners, section 3. Not taken from there: a class
    token, targets normalised patch by patch.
    """

    def __init__(self, encoder: ViT, *, decoder_dim: int = 32, decoder_depth: int = 1, num_heads: int = 4) -> None:
        super().__init__()
        if encoder.class_token is not None:
            raise ValueError("pooling=class must be mean for an encoder that is to read some of its patches")
        if encoder.position is None:
            raise ValueError(
                "position=none or rotary must be added to the patches of an encoder that reads some of them"
            )
        self.encoder = encoder
        projection = encoder.patches.projection
        self.from_encoder = nn.Linear(projection.out_features, decoder_dim)
        self.mask_token = nn.Parameter(nn.init.normal_(torch.empty(decoder_dim), std=0.02))
        self.position = nn.Buffer(sinusoidal_2d(*encoder.patches.grid, decoder_dim), persistent=False)
        self.blocks = nn.Sequential(
            *(
                Block(
                    TokenAttention(decoder_dim, num_heads), decoder_dim, 2 * decoder_dim, norm_first=True, dropout=0.0
                )
                for _ in range(decoder_depth)
            )
        )
        self.norm = nn.LayerNorm(decoder_dim)
        self.to_pixels = nn.Linear(decoder_dim, projection.in_features)

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return len(self.position)

    def forward(self, images: Tensor, visible: Tensor) -> Tensor:
        """Every patch as painted, ``[n, patches, pixels]``, from those that are visible.

        Args:
            images: ``[n, channels, height, width]``.
            visible: indices of the patches that are shown, ``[n, shown]``, each once.
        """
        return self.decode(self.encode(images, visible), visible)

    def encode(self, images: Tensor, visible: Tensor) -> Tensor:
        """Tokens of the visible patches, ``[n, shown, embed_dim]``, in the order of ``visible``."""
        tokens = self.encoder.tokens(images)
        x = tokens.gather(1, _along(visible, tokens))
        for block in self.encoder.blocks:
            x = block(x)
        shown: Tensor = self.encoder.norm(x)
        return shown

    def decode(self, shown: Tensor, visible: Tensor) -> Tensor:
        """Pixels ``[n, patches, pixels]`` of all patches from tokens ``[n, shown, embed_dim]`` of visible ones."""
        known = self.from_encoder(shown)
        everywhere = self.mask_token.to(known.dtype).expand(len(known), self.patches, -1)
        x = everywhere.scatter(1, _along(visible, known), known) + self.position
        painted: Tensor = self.to_pixels(self.norm(self.blocks(x)))
        return painted

    def loss(self, images: Tensor, visible: Tensor) -> Tensor:
        """Mean squared error of all pixels of masked patches; what is painted over visible ones does not count."""
        height, width = self.encoder.patches.patch
        painted: Tensor = self(images, visible)
        squared = (painted - patch_pixels(images, height, width)).square().mean(-1)
        masked = torch.ones_like(squared, dtype=torch.bool).scatter(1, visible, False)
        return squared[masked].mean()


def _along(visible: Tensor, tokens: Tensor) -> Tensor:
    """Index ``[n, shown]`` of tokens, repeated for each of their components."""
    return visible[:, :, None].expand(-1, -1, tokens.shape[-1])


def patch_pixels(images: Tensor, height: int, width: int) -> Tensor:
    """Pixels ``[n, patches, channels * height * width]`` of images ``[n, channels, ...]``, patch by patch, row by row.

    In the order in which ``attnrepro.nn.vit.PatchEmbedding`` reads them.
    """
    strips = images.unfold(2, height, height).unfold(3, width, width)
    return strips.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def visible_count(patches: int, mask_share: float) -> int:
    """How many patches stay visible when ``mask_share`` of them are masked, rounded down.

    Raises ``ValueError`` unless at least one is visible and one masked.
    """
    shown = int(patches * (1 - mask_share) + 1e-9)
    if not 1 <= shown < patches:
        raise ValueError(f"mask_share={mask_share:g} must leave some of {patches} patches visible and mask some")
    return shown


def draw_visible(n: int, patches: int, shown: int, stream: torch.Generator) -> Tensor:
    """Visible patches ``[n, shown]`` of ``n`` images: any ``shown`` of ``patches``, with equal chance."""
    return torch.rand(n, patches, generator=stream, device=stream.device).argsort(1)[:, :shown]
