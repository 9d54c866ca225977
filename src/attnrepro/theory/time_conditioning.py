"""Jobs that a scalar t in [0, 1] selects, and the error of whoever does not know t.

Two ways to act on x: turning (x_1, x_2) by ``turns`` full circles times t, and the posterior mean of a clean value of
+1 or -1 given x = clean + noise at the noise level of t, tanh(x / noise^2). For a model without t the best answer is
the mean over t, so that its mean square error is the variance over t. Background: document 000, section on position
(a scalar t as an input).
"""

import math

import numpy as np

# Standard deviation of the noise: geometric from the one at t = 0 to the other at t = 1.
LOWEST_NOISE, HIGHEST_NOISE = 0.2, 2.0
_NODES = 400


def blind_turn_error(turns: int) -> float:
    """Mean square error a component of the best answer without t, for x ~ N(0, I) and t uniform.

    Over whole circles the mean of the turned vector is 0, which leaves its variance 1; ``ValueError`` below one circle.
    """
    if turns < 1:
        raise ValueError(f"turns={turns} must be 1 or more whole circles")
    return 1.0


def blind_denoise_error() -> float:
    """E_x Var_t tanh(x / noise(t)^2) for x ~ N(0, 1) and t uniform, by Gauss-Legendre quadrature in both."""
    node, weight = np.polynomial.legendre.leggauss(_NODES)
    t, of_t = (node + 1) / 2, weight / 2
    x = 10.0 * (node + 1) / 2  # an even function of x: half of the line, beyond 10 nothing
    of_x = 10.0 * weight / 2 * 2 * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    level = LOWEST_NOISE * (HIGHEST_NOISE / LOWEST_NOISE) ** t
    mean = np.tanh(x[:, None] / level**2)
    first, second = mean @ of_t, mean**2 @ of_t
    return float(of_x @ (second - first**2))
