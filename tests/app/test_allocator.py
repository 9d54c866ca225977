"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

MEASURE = """
import resource, sys
import numpy as np
from attnrepro.app import run
if sys.argv[1] == "kept":
    run._keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    np.ones(1 << 22)
before = faults()
for _ in range(20):
    np.ones(1 << 22)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_freed_blocks_are_not_faulted_in_anew() -> None:
    def faults(how: str) -> int:
        found = subprocess.run([sys.executable, "-c", MEASURE, how], check=True, capture_output=True, text=True)
        return int(found.stdout)

    # 32 MB are 8192 pages; 16 where pages are huge.
    assert faults("kept") < 10
    assert faults("given") >= 20
