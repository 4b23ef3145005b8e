"""Write, validate, ask and train with an installed seqlake: `python -I _smoke.py ENVIRONMENT`, in an empty folder."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import seqlake as sl

if not Path(sl.__file__).resolve().is_relative_to(Path(sys.argv[1]).resolve()):
    sys.exit(f"the seqlake of {sys.argv[1]} was expected, found {sl.__file__}")
if sl.__version__ != version("seqlake"):
    sys.exit(f"the metadata say {version('seqlake')}, the package says {sl.__version__}")
if find_spec("torch"):
    sys.exit("base dependencies alone were expected, found torch")
for name in sl.__all__:
    if name not in {"ray", "spark"}:
        getattr(sl, name)
if not sl.errors.SeqlakeError or not Path(sl.__file__).with_name("py.typed").exists():
    sys.exit("py.typed is missing: types would not reach whoever installs this")

signal = {f"ep_{i}": np.random.default_rng(i).normal(size=(20 + i, 3)).astype("float32") for i in range(6)}
ds = sl.create("smoke", sl.Schema({"action": sl.Trajectory(dim=3, fps=10), "cam": sl.Video(fps=10)}))
with ds.writer() as writer:
    for name, values in signal.items():
        writer.add(name, action=values, cam=np.zeros((len(values), 32, 32, 3), np.uint8))
ds = sl.open("smoke")
ds.validate(depth="decode").raise_for_errors()
for name, values in signal.items():
    np.testing.assert_array_equal(ds[name]["action"], values)
if ds.sql("SELECT count(*) FROM dataset").fetchall() != [(6,)]:
    sys.exit("six sequences were expected")
batches = list(sl.Loader(ds, window=sl.Window({"action": range(8), "cam": [0]}), batch_size=4, shuffle=True, seed=0))
if batches[0]["action"].shape != (4, 8, 3) or batches[0]["cam"].shape != (4, 1, 32, 32, 3):
    sys.exit(f"other batches were expected, found {batches[0]['action'].shape}")
print(f"seqlake {sl.__version__} on Python {sys.version.split()[0]}: {len(batches)} batches")  # noqa: T201
