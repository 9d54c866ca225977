#!/usr/bin/env bash
# What only a GPU can answer, in at most 8 minutes, without network, W&B, git or an installation of this project.
#   scripts/gpu_check.sh              (needs PyTorch >= 2.11, lightning, pandas; the rest from make gpu-wheels)
#   OUT=folder         where the report and an archive of all rows go, by default ./gpu-results with the cells
#   DEVICE=cpu         the same steps at a tiny size without a GPU
#   TABLES="a b"       other tables than the headline ones
#   PYTHON=python3     the interpreter that has PyTorch
# Both are meant from where this is called.
case "${OUT:-}" in '' | /*) ;; *) export OUT="$PWD/$OUT" ;; esac
case "${PYTHON:-}" in /*) ;; */*) PYTHON="$PWD/$PYTHON" ;; esac
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m attnrepro.app.gpu_check
