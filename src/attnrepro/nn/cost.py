"""What a model costs, counted on the model itself; ``attnrepro.theory.image_models`` has the closed forms."""

import copy

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.theory.image_models import Cost, ImageShape


def count(model: nn.Module, image_shape: ImageShape) -> Cost:
    """Trainable parameters, and FLOPs of one forward pass of one image, two for each multiply-add.

    Counted with the unfused attention kernel: the counter does not see the fused one of CPUs.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    image = torch.zeros(1, *image_shape, dtype=parameters[0].dtype, device=parameters[0].device)
    tested = copy.deepcopy(model).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        tested(image)
    return Cost(sum(p.numel() for p in parameters), counter.get_total_flops())
