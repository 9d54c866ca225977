"""Distillation on paper: what a distillation token costs, and when a teacher's labels teach nothing.

Hard distillation replaces half of every label by the teacher's. Where the teacher labels every training view as it is
labelled, both halves are the same and so is the loss: the student is, to the last step, the one without a teacher.
Whatever hard distillation adds comes from views on which the teacher is wrong.
"""

from attnrepro.theory.image_models import Cost, ImageShape, cost, linear, settings_of, total


def token_cost(name: str, image_shape: ImageShape, num_classes: int) -> Cost:
    """Cost of a ViT preset with mean pooling, a distillation token and its head (`attnrepro.nn.distilled_vit`).

    A token without a position costs what a class token does.
    """
    embed_dim = settings_of(name, {})[1]["embed_dim"]
    return total(cost(name, image_shape, num_classes, pooling="class"), linear(embed_dim, num_classes))
