"""Write pictures that come as sheets, a row of pixels per picture, as a folder per class (data.name=image_folder).

    python -m benchmarks.cifar_sheets SHEETS OUT

SHEETS holds cifar10_batch_0.png, cifar10_batch_1.png, ... (1,000 rows of 32 x 32 pixels each; demo/cifar10 of the
public repository karpathy/convnetjs) and labels.txt, a label from 0 to 9 per line in the order of the training set.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from fedcore.data.cifar import CLASSES

SIDE = 32


def write(sheets: Path, out: Path) -> int:
    """Write every picture as out/<class>/<number>.png and return their number."""
    files = sorted(sheets.glob("cifar10_batch_*.png"), key=lambda file: int(file.stem.rpartition("_")[2]))
    pixels = np.concatenate([np.asarray(Image.open(file).convert("RGB")) for file in files])
    labels = [int(line) for line in (sheets / "labels.txt").read_text().split()]
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = out / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(SIDE, SIDE, 3)).save(folder / f"{number:05}.png")
    return len(labels)


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]), Path(sys.argv[2])):,} pictures")
