"""IDX files, the format of MNIST and its relatives (LeCun, Cortes and Burges, "The MNIST database")."""

import math

import numpy as np
from numpy.typing import NDArray


def read_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file.

    Raises ``ValueError`` beginning with ``name`` when the magic number is wrong or the file is not as long as it says.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != 8:
        raise ValueError(f"{name} is no IDX file of unsigned bytes: it begins with {content[:4].hex() or 'nothing'}")
    head = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4)]
    wanted = head + math.prod(shape)
    if len(content) != wanted:
        raise ValueError(f"{name} has {len(content)} bytes and must have {wanted}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
