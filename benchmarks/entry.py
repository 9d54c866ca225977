"""Seconds until the command line answers, minimum and median over repeats."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

TABLE = "experiment=sqrt_d_entropy"
REPEATS = 5


def timed(arguments: list[str], environment: dict[str, str], *, code: int = 0) -> list[float]:
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "attnrepro", *arguments], env=environment, capture_output=True)
        found.append(time.perf_counter() - started)
        if done.returncode != code:
            raise SystemExit(f"{arguments}: exit code {done.returncode}, expected {code}\n{done.stderr.decode()}")
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        plain = dict(os.environ)
        smoke = [TABLE, "scale=smoke", "tracking=disabled", f"results={root}"]
        subprocess.run([sys.executable, "-m", "attnrepro", *smoke], check=True, capture_output=True)
        line = f"attnrepro {TABLE} params."
        typing = {**plain, "COMP_LINE": line, "COMP_POINT": str(len(line))}
        cases = {
            "--help": timed(["--help"], plain),
            "completion": timed(["-sc", "query=bash"], typing),
            "typo": timed([TABLE, "params.haed_dim=4"], plain, code=2),
            "--dry-run": timed([TABLE, "--dry-run"], plain),
            "all finished": timed(smoke, plain),
        }
    for name, seconds in cases.items():
        print(f"{name:14s} min {min(seconds):.2f} s   median {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
