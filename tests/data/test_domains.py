"""MNIST-M, and several digit domains as one set."""

import bz2
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import REAL, real, refusal, same, written
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from sklearn.linear_model import RidgeClassifier

from fedcore.data import load
from fedcore.data.domains import enlarge
from fedcore.data.pixels import blend
from fedcore.types.method import generator

EMBEDDED = ["digits", "digits_inverted", "digits_photo"]


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    return written(tmp_path / "sets")


@pytest.fixture
def usps(mnist: Path) -> Path:
    """MNIST's 20 and 10 images, and USPS with 4 and 2, each of one value."""
    (mnist / "USPS").mkdir()
    for name, count in (("usps.bz2", 4), ("usps.t.bz2", 2)):
        lines = [f"{k + 1} " + " ".join(f"{i}:{k / 4}" for i in range(1, 257)) for k in range(count)]
        (mnist / "USPS" / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    return mnist


def photo(file: Path, value: object = 0, size: tuple[int, int] = (40, 30)) -> Path:
    """Write a photograph of one colour, or of given pixels."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.broadcast_to(np.asarray(value, np.uint8), (*size, 3))
    Image.fromarray(np.ascontiguousarray(pixels)).save(file)
    return file


# MNIST-M


def test_every_blend_is_a_crop_of_one_photograph_less_the_digit():
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((9, 6, 3), (5, 5, 3))]
    x = torch.from_numpy(rng.integers(0, 256, (60, 1, 5, 5), dtype=np.uint8))
    made = blend(x, [lambda p=p: p for p in photos], generator(0))
    crops = {
        (k, row, column): photo[row : row + 5, column : column + 5].transpose(2, 0, 1).astype(int)
        for k, photo in enumerate(photos)
        for row in range(photo.shape[0] - 4)
        for column in range(photo.shape[1] - 4)
    }
    found = set()
    for image, digit in zip(made.numpy(), x.numpy().astype(int), strict=True):
        found |= {place for place, crop in crops.items() if (np.abs(crop - digit) == image).all()}
    assert len(found) == len(crops) == 11  # sixty digits have been at every place


def test_mnist_m(mnist, tmp_path):
    plain = load("mnist", root=mnist, download=False)
    photo(tmp_path / "photos" / "a.png", (10, 200, 255))
    data = load("mnist_m", root=str(mnist), download=False, photos=str(tmp_path / "photos"))
    for part, base in ((data.train, plain.train), (data.test, plain.test)):
        assert part is not None
        assert base is not None
        assert part.y.tolist() == base.y.tolist()
        expected = torch.stack([(base.x[:, 0].int() - colour).abs() for colour in (10, 200, 255)], dim=1)
        assert part.x.tolist() == expected.tolist()
    assert data.classes == plain.classes


def test_mnist_m_depends_on_its_seed_and_photographs(mnist, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (2, 40, 60, 3))
    photo(tmp_path / "photos" / "deep" / "er" / "b.PNG", noise[0], (40, 60))
    photo(tmp_path / "photos" / "a.png", noise[1], (40, 60))
    (tmp_path / "photos" / "notes.txt").touch()
    given = {"root": mnist, "download": False, "photos": tmp_path / "photos"}
    data = load("mnist_m", **given)
    same(data, load("mnist_m", **given, seed=0))
    other = load("mnist_m", **given, seed=1)
    assert not torch.equal(data.train.x, other.train.x)
    assert not torch.equal(data.train.x, load("mnist_m", root=mnist, download=False).train.x)


@pytest.mark.slow
def test_mnist_m_of_the_embedded_digits_over_the_sample_photographs():
    data = load("mnist_m", root="nowhere", download=False, base="digits")
    assert data.train.x.shape == (1797, 3, 28, 28)
    assert data.test is None
    digits = load("digits")
    pixels, labels = load_digits(return_X_y=True)
    assert torch.equal(digits.train.x.flatten(1) * 16, torch.from_numpy(pixels).float())
    assert digits.train.y.tolist() == labels.tolist() == data.train.y.tolist()
    big = torch.nn.functional.interpolate(digits.train.x[:20] * 255, size=(28, 28), mode="bilinear")
    assert (enlarge(28).x[:20] - big).abs().max() <= 0.51  # rounded
    blank = enlarge(28).x[0, 0] == 0  # there the photograph shows
    shown = data.train.x[0][:, blank].T.tolist()
    colours = {tuple(c) for image in load_sample_images().images for c in image.reshape(-1, 3).tolist()}
    assert len(shown) > 50
    assert all(tuple(pixel) in colours for pixel in shown)


def test_mnist_m_refused(mnist, tmp_path):
    given = {"root": mnist, "download": False}
    said = refusal("mnist_m", **given, base="mnits")
    assert said == "data.base = 'mnits': did you mean mnist? allowed: mnist, digits"
    assert "MNIST/raw/train-images" in refusal("mnist_m", root=tmp_path / "none", download=False)
    for empty in (tmp_path / "none", photo(tmp_path / "one.png")):
        line = refusal("mnist_m", **given, photos=empty)
        assert line.startswith(f"data.photos = {empty}: no photograph")
    small = photo(tmp_path / "photos" / "small.png", size=(100, 27))
    said = refusal("mnist_m", **given, photos=tmp_path / "photos")
    assert said == f"data.photos = {small}: 27 x 100 pixels; at least 28 a side"
    small.write_bytes(small.read_bytes()[:40])
    line = refusal("mnist_m", **given, photos=tmp_path / "photos")
    assert line.startswith(f"data.photos = {small}: cannot be used (")


# domains


@pytest.mark.slow
def test_embedded_domains():
    data = load("domains", root="nowhere", download=False, domains=EMBEDDED)
    assert data.domain == tuple(name for name in EMBEDDED for _ in range(599))
    assert data.train.x.shape == (1797, 3, 16, 16)
    assert data.test is None
    assert data.train.x.is_contiguous()
    plain, inverted, photos = (data.train.x[599 * k : 599 * k + 599] for k in range(3))
    for k in range(3):  # every class is shared out evenly
        counts = data.train.y[599 * k : 599 * k + 599].bincount(minlength=10)
        assert ((counts >= 58) & (counts <= 61)).all()
    assert (plain[:, 0] == plain[:, 1]).all()
    assert (plain[:, 0] == plain[:, 2]).all()
    assert (inverted[:, :, :2] == 255).all()  # the border
    assert (inverted[:, :, :, -2:] == 255).all()
    assert not (photos[:, 0] == photos[:, 1]).all()


@pytest.mark.slow
def test_embedded_domains_share_no_digit():
    """The three thirds, put together, are all digits once: by their renderings, which are known here."""
    data = load("domains", root="nowhere", download=False, domains=EMBEDDED)
    everyone = enlarge(16)
    bordered = torch.full((1797, 16, 16), 255, dtype=torch.uint8)
    small = torch.nn.functional.interpolate(everyone.x.float(), size=(12, 12), mode="bilinear", antialias=True)
    bordered[:, 2:-2, 2:-2] = 255 - small.round()[:, 0].to(torch.uint8)
    plain = {tuple(x): i for i, x in enumerate(everyone.x.flatten(1).tolist())}
    inverted = {tuple(x): i for i, x in enumerate(bordered.flatten(1).tolist())}
    assert len(plain) == len(inverted) == 1797
    first = [plain[tuple(x)] for x in data.train.x[:599, 0].flatten(1).tolist()]
    second = [inverted[tuple(x)] for x in data.train.x[599:1198, 0].flatten(1).tolist()]
    assert len({*first, *second}) == 1198
    left = sorted({*range(1797)} - {*first, *second})
    assert data.train.y.tolist() == everyone.y[[*first, *second, *left]].tolist()


@pytest.mark.slow
def test_embedded_domains_depend_on_their_seed_only():
    together = load("domains", root="nowhere", download=False, domains=EMBEDDED)
    for k, name in enumerate(EMBEDDED):
        alone = load("domains", root="nowhere", download=False, domains=[name])
        assert torch.equal(alone.train.x, together.train.x[599 * k : 599 * k + 599])
        assert torch.equal(alone.train.y, together.train.y[599 * k : 599 * k + 599])
        other = load("domains", root="nowhere", download=False, domains=[name], seed=1)
        assert not torch.equal(alone.train.x, other.train.x)
    turned = load("domains", root="nowhere", download=False, domains=EMBEDDED[::-1])
    assert turned.domain == tuple(name for name in EMBEDDED[::-1] for _ in range(599))
    assert torch.equal(turned.train.x[-599:], together.train.x[:599])


@pytest.mark.slow
def test_embedded_domains_differ_for_a_classifier():
    """What was learned on plain digits is worse than chance on inverted ones, which are as easy in themselves."""
    data = load("domains", root="nowhere", download=False, domains=EMBEDDED)
    x, y = data.train.inputs().flatten(1).numpy(), data.train.y.numpy()
    domain = np.array(data.domain)
    score = {}
    for source in EMBEDDED[:2]:
        mine = np.flatnonzero(domain == source)
        learned = RidgeClassifier(10).fit(x[mine[::2]], y[mine[::2]])
        for target in EMBEDDED:
            there = mine[1::2] if target == source else domain == target
            score[source, target] = learned.score(x[there], y[there])
    assert min(score["digits", "digits"], score["digits_inverted", "digits_inverted"]) > 0.85
    assert max(score["digits", "digits_inverted"], score["digits_inverted", "digits"]) < 0.1
    assert score["digits", "digits_photo"] < 0.6


def test_published_domains(usps):
    names = ["usps", "mnist", "mnist_m"]
    data = load("domains", root=usps, download=False, domains=names, seed=3)
    assert data.domain == ("usps",) * 4 + ("mnist",) * 20 + ("mnist_m",) * 20
    assert data.test is not None
    assert data.train.x.shape == (44, 3, 28, 28)
    assert data.test.x.shape == (22, 3, 28, 28)
    assert data.train.x.is_contiguous()
    assert [int(x.unique()) for x in data.train.x[:4]] == [127, 159, 191, 223]
    mnist = load("mnist", root=usps, download=False)
    blends = load("mnist_m", root=usps, download=False, seed=3)
    for part, gray, colours, at in (
        (data.train, mnist.train, blends.train, 4),
        (data.test, mnist.test, blends.test, 2),
    ):
        end = at + len(gray)
        for channel in range(3):
            assert torch.equal(part.x[at:end, channel], gray.x[:, 0])
        assert torch.equal(part.x[end:], colours.x)
        assert part.y.tolist() == [*range(at), *gray.y.tolist(), *gray.y.tolist()]


def test_published_domains_as_st_lfs_authors_have_them(usps):
    """Padded USPS, and one channel, which PIL makes alike but for rounding."""
    names = ["usps", "mnist", "mnist_m"]
    colours = load("domains", root=usps, download=False, domains=names, seed=3)
    data = load("domains", root=usps, download=False, domains=names, seed=3, usps_frame="padded", gray=True)
    assert (data.domain, data.test.x.shape) == (colours.domain, (22, 1, 28, 28))
    small = load("usps", root=usps, download=False)
    for part, plain, colour in ((data.train, small.train, colours.train), (data.test, small.test, colours.test)):
        at, end = len(plain), (len(part) + len(plain)) // 2
        assert torch.equal(part.x[:at, :, 6:-6, 6:-6], plain.x)
        assert part.x[:at].sum(dtype=torch.int64) == plain.x.sum(dtype=torch.int64)
        assert torch.equal(part.x[at:end, 0], colour.x[at:end, 0])
        assert torch.equal(part.y, colour.y)
        for gray, image in zip(part.x[end:], colour.x[end:], strict=True):
            known = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"))
            assert np.abs(gray[0].numpy().astype(int) - known).max() <= 1


def test_domains_refused(tmp_path):
    def line(names: list[str]) -> str:
        return refusal("domains", root=tmp_path, download=False, domains=names)

    assert line(["digits", "digits_photos"]).startswith(
        "data.domains = 'digits_photos': did you mean digits_photo? allowed: mnist, usps"
    )
    assert line(["digits", "digits"]) == "data.domains = ['digits', 'digits']: 'digits' is there twice"
    assert line(["mnist", "digits"]).startswith("data.domains = ['mnist', 'digits']: choose some of mnist, usps")
    assert line([]).startswith("data.domains = []: choose some of")
    assert "MNIST/raw/train-images-idx3-ubyte (plain or .gz) is missing" in line(["mnist"])


@pytest.mark.slow
@real
def test_mnist_m_itself():
    photos = REAL / "BSDS500" / "images" / "train"
    if not photos.is_dir():
        pytest.skip("FEDCORE_DATA has no BSDS500/images/train")
    data = load("mnist_m", root=REAL, download=False, photos=photos)
    mnist = load("mnist", root=REAL, download=False)
    assert data.test is not None
    assert data.train.x.shape == (60000, 3, 28, 28)
    assert data.test.x.shape == (10000, 3, 28, 28)
    assert torch.equal(data.train.y, mnist.train.y)
    x, digits = data.train.x[:10000], mnist.train.x[:10000].expand(-1, 3, -1, -1)
    # crops are alike under ink and paper: where they differ, it is the digit that turned them around
    assert x[digits == 255].float().mean() + x[digits == 0].float().mean() == pytest.approx(255, abs=3)
