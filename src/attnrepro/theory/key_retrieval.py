"""What is known of the key-value retrieval task before anybody trains on it."""


def start_logit_variance(head_dim: int, weight_variance: float, *, scaled: bool) -> float:
    """Variance at the start of the logit of a key that was not asked for.

    With independent tokens N(0, I) and independent weights of mean 0 and variance ``weight_variance`` / embed_dim the
    logit x W_Q W_K^T y is a sum of embed_dim² head_dim products of four independent factors, of variance
    (weight_variance / embed_dim)² each, which gives head_dim weight_variance² whatever embed_dim is; 1/sqrt(head_dim)
    takes the factor head_dim away. Source: document 004, section 1.2, for weight_variance 1.
    """
    return weight_variance**2 * (1.0 if scaled else float(head_dim))


def uniform_accuracy(n_keys: int) -> float:
    """Accuracy of every head whose weights are all 1/n_keys: its output is the same for all answers."""
    return 1 / n_keys


def uniform_loss(n_keys: int) -> float:
    """Smallest mean squared distance of such a head from the unit vector of the answer: that of their mean."""
    return 1 - 1 / n_keys
