"""What a row was measured on: device, processor, versions. Nothing here names the host or the user."""

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path

PACKAGES = (
    "torch",
    "lightning",
    "torchmetrics",
    "hydra-core",
    "omegaconf",
    "wandb",
    "pandas",
    "numpy",
    "scipy",
    "altair",
)


def version(package: str) -> str | None:
    """Installed version of a package without importing it, None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def processor() -> str:
    """Model name of the processor, e.g. ``AMD EPYC``."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


@functools.cache
def cuda_device() -> str | None:
    """Name of the first CUDA device that the installed torch could use, else None; torch is not imported.

    Asking torch costs seconds and precheck must answer in a fraction of one, so the driver is asked directly.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    built = Path(spec.origin).with_name("version.py")
    if not built.is_file() or re.search(r"^cuda\b.*=\s*None", built.read_text(), re.MULTILINE):
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return None
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(name, 256, device):
        return None
    return name.value.decode(errors="replace")


def device_name(accelerator: str) -> str:
    """Model of the device a resolved accelerator (``cpu`` or ``cuda``) stands for."""
    return (cuda_device() or "unknown") if accelerator == "cuda" else processor()


def environment(accelerator: str) -> str:
    """Name under which rows are kept apart: ``<cpu or cuda>-<model>-torch<major.minor>``."""
    model = re.sub(r"[^A-Za-z0-9]+", "-", re.sub(r"\((R|TM|r|tm)\)", "", device_name(accelerator))).strip("-")
    torch = ".".join((version("torch") or "none").split("+")[0].split(".")[:2])
    return f"{accelerator}-{model}-torch{torch}"


def provenance(accelerator: str) -> dict[str, object]:
    """Versions, platform and hardware, as written to ``run.json``."""
    return {
        "environment": environment(accelerator),
        "device": accelerator,
        "device_model": device_name(accelerator),
        "processor": processor(),
        "cores": os.cpu_count(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
    }
