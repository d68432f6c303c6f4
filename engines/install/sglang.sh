#!/usr/bin/env bash
# Installs SGLang for a machine without a GPU into DIR/venv. usage: sglang.sh DIR   (6.4 GB; seconds where packages are near)
# Packages that only serve CUDA are left out. On a GPU install SGLang as its documentation says and name it: SGLANG=/path/to/venv
# In broker.yaml: plugin: sglang, compute_dtype: float32, settings: {venv: DIR/venv}
set -euo pipefail
dir=${1:?usage: sglang.sh DIR}
version=0.5.23
venv=$dir/venv
if [ -n "${SGLANG:-}" ]; then
  echo "SGLANG=$SGLANG is used as it is: set venv or python in broker.yaml to it"
  exit 0
fi
report() { ls "$venv"/lib/python3*/site-packages | sed -n 's/^\(sglang\|torch\|transformers\)-\(.*\)\.dist-info$/\1 \2/p' | tr '\n' ' '; echo; }
site() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ -x "$venv/bin/sglang" ] && [ -d "$venv"/lib/python3*/site-packages/sgl_kernel ]; then
  echo "$venv: already there; remove $dir to install anew"
  report
  exit 0
fi
fail() { echo "sglang.sh: $*" >&2; exit 1; }
mkdir -p "$dir"
free=$(df -Pk "$dir" | awk 'NR == 2 {print int($4 / 1048576)}')
[ "$free" -ge 9 ] || fail "$dir has $free GiB free, 9 are needed"
uv=$(command -v uv || true)
if [ -z "$uv" ]; then # in an environment of its own: a system's Python may refuse packages
  python3 -m venv "$dir/uv" || fail "uv is not here, and python3 -m venv does not work: install uv"
  "$dir/uv/bin/pip" install --quiet uv
  uv=$dir/uv/bin/uv
fi
rm -rf "$venv"
trap 'rm -rf "$venv"' ERR INT TERM # half an environment would look installed
"$uv" venv --quiet --python 3.11 "$venv"
cuda_only="sglang-kernel sgl-deep-ep sgl-deep-gemm sgl-flash-mla flashinfer-python flash-attn-4 quack-kernels humming-kernels
nvidia-cutlass-dsl tilelang nvshmem4py-cu13 nvidia-mathdx cuda-python torchcodec torchaudio timm tml-renderers deepseek-recipe"
"$uv" pip install --quiet --python "$venv/bin/python" --excludes <(printf '%s\n' $cuda_only) "sglang==$version"
# SGLang imports its kernels by name even where it calls none of them, and the wheel that holds them loads the CUDA driver.
kernels=$(site)/sgl_kernel
mkdir -p "$kernels"
cat >"$kernels/__init__.py" <<'PYTHON'
"""Stands in for SGLang's CUDA kernels on a machine without a GPU: every name can be imported and none can be called."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0+absent"


class Absent:
    def __init__(self, path):
        self._path = self.__name__ = path

    def __getattr__(self, name):
        return absent(self._path, name)

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(self._path + " is a CUDA kernel, and there is no GPU here")


def absent(parent, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(parent + "." + name)


class AbsentModules(MetaPathFinder, Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] == __name__ and fullname != __name__:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: absent(spec.name, name)
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, AbsentModules())


def __getattr__(name):
    return absent(__name__, name)
PYTHON
trap - ERR INT TERM
report
