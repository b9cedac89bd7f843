"""Samples from real files of every kind, and what is refused."""

import json
import math
import os
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitsect
from bitsect.errors import DataError, MissingExtraError, RunError
from bitsect.sources.data import folder, load_samples
from bitsect.sources.data.copies import fresh, seen_before
from bitsect.sources.preparation import Reading
from bitsect.sources.room import Room
from tiny import seeded

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (11, 6, 5, 3), dtype=np.uint8)
FLOATS = RNG.standard_normal((11, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 11)
MEAN, STD = np.float32([0.4, 0.5, 0.6]), np.float32([0.2, 0.25, 0.3])


def save(path: Path, **arrays: np.ndarray) -> str:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}, path)
    return str(path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes of PNG files, of which the first is named so that its order is not its number."""
    root = tmp_path / "images"
    for index, pixels in enumerate(PIXELS):
        folder = root / ["10", "2", "007"][index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{index:02d}.{['png', 'PNG', 'bmp'][index % 3]}")
    (root / ".hidden").mkdir()
    (root / "notes.txt").write_text("no image")
    return root


def refused(message: str, *data: object, **options: object) -> None:
    """Loading and reading `data` raises one line with this message."""
    with pytest.raises(DataError) as caught:
        for _ in load_samples(*data, **options).batches(4):
            pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# Files of arrays


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_pixels_become_normalised_channels_first(tmp_path, suffix):
    samples = load_samples(save(tmp_path / f"a{suffix}", x=PIXELS, y=LABELS, mean=MEAN, std=STD))
    assert len(samples) == 11
    assert torch.equal(samples.labels, torch.from_numpy(LABELS))
    inputs = samples.inputs(slice(None))
    expected = (
        torch.from_numpy(PIXELS).permute(0, 3, 1, 2) / 255 - torch.from_numpy(MEAN)[:, None, None]
    ) / (torch.from_numpy(STD)[:, None, None])
    assert torch.equal(inputs, expected)
    assert inputs.is_contiguous()
    assert torch.equal(samples.inputs(torch.tensor([3, 1])), expected[[3, 1]])


def test_both_kinds_of_file_and_memory_are_the_same_samples(tmp_path):
    arrays = {"x": PIXELS, "y": LABELS}
    files = [load_samples(save(tmp_path / name, **arrays)) for name in ("a.npz", "a.safetensors")]
    memory = load_samples((torch.from_numpy(PIXELS), torch.from_numpy(LABELS)))
    assert len({samples.fingerprint() for samples in (*files, memory)}) == 1


def test_a_fingerprint_sees_every_change(tmp_path):
    changed, other_labels = PIXELS.copy(), LABELS.copy()
    changed[5, 0, 0, 0] ^= 1
    other_labels[7] += 1
    versions = [
        load_samples((PIXELS, LABELS)),
        load_samples((changed, LABELS)),
        load_samples((PIXELS, other_labels)),
        load_samples(PIXELS),
        load_samples((PIXELS, LABELS), mean=0.5),
        load_samples((PIXELS, LABELS), draw=11),
        load_samples((PIXELS[:10], LABELS[:10])),
        load_samples((PIXELS.reshape(11, 5, 6, 3), LABELS)),
    ]
    assert len({samples.fingerprint() for samples in versions}) == len(versions)


def test_options_go_before_the_files_own_mean(tmp_path):
    path = save(tmp_path / "a.npz", x=PIXELS, mean=MEAN, std=STD)
    samples = load_samples(path, mean=127, std=128, scale=1)
    expected = (torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() - 127) / 128
    assert torch.equal(samples.inputs(slice(None)), expected)
    assert samples.labels is None


def test_grey_pixels_need_no_channel():
    samples = load_samples(PIXELS[..., 0])
    assert torch.equal(samples.inputs(slice(0, 2)), torch.from_numpy(PIXELS[:2, None, :, :, 0]) / 255)


def test_floats_and_tokens_are_taken_as_they_are(tmp_path):
    path = save(tmp_path / "a.npz", x=FLOATS, y=LABELS.astype(np.uint8), mean=MEAN)
    samples = load_samples(path)
    assert torch.equal(samples.inputs(slice(None)), torch.from_numpy(FLOATS))
    assert samples.labels.dtype == torch.int64
    tokens = RNG.integers(0, 1000, (11, 7)).astype(np.int32)
    assert load_samples(save(tmp_path / "b.npz", x=tokens)).inputs(slice(None)).dtype == torch.int32
    wide = load_samples(save(tmp_path / "c.npz", x=FLOATS.astype(np.float64)))
    assert wide.inputs(slice(None)).dtype == torch.float32
    assert load_samples(torch.from_numpy(FLOATS).double()).inputs(slice(None)).dtype == torch.float64


def test_arrays_without_x_are_named_inputs(tmp_path):
    ids, mask = RNG.integers(0, 9, (11, 7)), np.ones((11, 7), dtype=np.uint8)
    samples = load_samples(save(tmp_path / "a.safetensors", input_ids=ids, attention_mask=mask, y=LABELS))
    inputs = samples.inputs(slice(2, 5))
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert torch.equal(inputs["input_ids"], torch.from_numpy(ids)[2:5])
    assert len(samples.labels) == 11


def test_beside_x_other_arrays_are_not_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=FLOATS, names=np.array(["a", "b"]))
    assert len(load_samples(path)) == 11


# Batches and draws


def test_batches_hold_every_sample_once_in_order():
    samples = load_samples((FLOATS, LABELS))
    batches = list(samples.batches(4))
    assert [len(batch.indices) for batch in batches] == [4, 4, 3]
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), torch.from_numpy(FLOATS))
    assert torch.equal(torch.cat([batch.labels for batch in batches]), torch.from_numpy(LABELS))
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(11))


def test_a_draw_is_seeded_shuffled_and_without_replacement():
    counting = torch.arange(50)[:, None].float()

    def drawn(count: int, seed: int) -> list[float]:
        return load_samples(counting, draw=count, seed=seed).inputs(slice(None)).flatten().tolist()

    assert drawn(20, 1) == drawn(20, 1)
    assert drawn(20, 1) != drawn(20, 2)
    assert drawn(20, 1) == drawn(30, 1)[:20]
    assert sorted(drawn(50, 1)) == list(range(50)) != drawn(50, 1)


def test_a_draw_keeps_labels_with_inputs():
    samples = load_samples((torch.arange(50)[:, None].float(), torch.arange(50)), draw=9, seed=4)
    assert torch.equal(samples.inputs(slice(None)).flatten().long(), samples.labels)
    again = load_samples(samples, draw=3)
    assert len(again) == 3
    assert set(again.labels.tolist()) <= set(samples.labels.tolist())
    assert load_samples(samples) is samples


@pytest.mark.parametrize("options", [{}, {"draw": 5, "seed": 3, "mean": [0.1, 0.2, 0.3], "scale": 1 / 128}])
def test_spec_and_options_give_the_same_samples_elsewhere(tmp_path, images, options, monkeypatch):
    save(tmp_path / "a.npz", x=PIXELS, y=LABELS, std=STD)
    monkeypatch.chdir(tmp_path)
    for spec in ("a.npz", "images"):
        samples = load_samples(spec, **options)
        stored = json.loads(json.dumps({"spec": samples.spec, "options": samples.options}))
        monkeypatch.chdir("/")
        again = load_samples(stored["spec"], **stored["options"])
        assert again.fingerprint() == samples.fingerprint()
        assert torch.equal(again.inputs(slice(None)), samples.inputs(slice(None)))
        monkeypatch.chdir(tmp_path)


def test_the_zoo_has_samples():
    samples = load_samples("zoo:fashion-test", draw=7)
    assert samples.spec == "zoo:fashion-test"
    assert samples.inputs(slice(None)).shape == (7, 1, 28, 28)


# Python objects


def test_a_data_loader_is_collected_in_order():
    loader = DataLoader(TensorDataset(torch.from_numpy(FLOATS), torch.from_numpy(LABELS)), batch_size=3)
    samples = load_samples(loader)
    assert samples.fingerprint() == load_samples((FLOATS, LABELS)).fingerprint()
    unlabelled = load_samples(DataLoader(TensorDataset(torch.from_numpy(FLOATS)), batch_size=3))
    assert unlabelled.labels is None
    assert unlabelled.fingerprint() == load_samples(torch.from_numpy(FLOATS)).fingerprint()


def test_iterables_may_give_several_inputs():
    x, y = torch.from_numpy(FLOATS), torch.from_numpy(LABELS)
    pairs = load_samples((((a, 2 * a), b) for a, b in zip(x.split(4), y.split(4), strict=True)))
    first, second = pairs.inputs(slice(None))
    assert torch.equal(second, 2 * first)
    named = load_samples([{"a": x[:6], "b": x[:6]}, {"a": x[6:], "b": x[6:]}])
    assert torch.equal(named.inputs(slice(None))["b"], x)
    assert named.labels is None
    assert set(load_samples(({"a": x}, y)).inputs(slice(0, 1))) == {"a"}


def test_labels_in_a_mapping_are_labels_not_inputs(tmp_path):
    x, y = torch.from_numpy(FLOATS), torch.from_numpy(LABELS)
    for name in ("labels", "label"):
        batches = [{"ids": x[:6], "mask": x[:6], name: y[:6]}, {"ids": x[6:], "mask": x[6:], name: y[6:]}]
        one = {"ids": x, "mask": x, name: y}
        arrays = {key: value.numpy().copy() for key, value in one.items()}
        rows = [{"ids": a, "mask": a, name: b} for a, b in zip(x, y, strict=True)]
        for data in (batches, one, iter(batches), DataLoader(rows, batch_size=4)):
            samples = load_samples(data)
            assert set(samples.inputs(slice(0, 1))) == {"ids", "mask"}
            assert torch.equal(samples.labels, y)
        for suffix in (".npz", ".safetensors"):
            samples = load_samples(save(tmp_path / f"a{suffix}", **arrays))
            assert set(samples.inputs(slice(0, 1))) == {"ids", "mask"}
            assert samples.labels.tolist() == LABELS.tolist()
            beside_x = load_samples(save(tmp_path / f"b{suffix}", x=FLOATS, **{name: LABELS}))
            assert beside_x.labels.tolist() == LABELS.tolist()


def test_an_input_that_is_called_labels_is_given_in_a_pair(tmp_path):
    x, y = torch.from_numpy(FLOATS), torch.from_numpy(LABELS)
    for data, labelled in (([({"x": x, "labels": y},)], False), (({"x": x, "labels": y}, y), True)):
        samples = load_samples(data)
        assert set(samples.inputs(slice(0, 1))) == {"x", "labels"}
        assert (samples.labels is not None) == labelled
    stored = load_samples(save(tmp_path / "a.npz", ids=FLOATS, labels=LABELS, y=LABELS))
    assert set(stored.inputs(slice(0, 1))) == {"ids", "labels"}
    refused("holds labels and label: leave one out", {"x": x, "labels": y, "label": y})
    refused("holds labels and no inputs", {"labels": y})


def test_a_seed_alone_is_a_random_order_of_all(images, tmp_path):
    path = save(tmp_path / "a.npz", x=np.arange(50.0)[:, None], y=np.arange(50))
    batches = [(torch.arange(i, i + 5.0)[:, None], torch.arange(i, i + 5)) for i in range(0, 50, 5)]
    orders = [load_samples(data, seed=3) for data in (path, batches, iter(batches))]
    for samples in orders:
        assert torch.equal(samples.inputs(slice(None))[:, 0].long(), samples.labels)
        assert torch.equal(samples.labels, orders[0].labels)
        assert sorted(samples.labels.tolist()) == list(range(50))
        assert samples.labels.tolist() != list(range(50))
    assert not torch.equal(load_samples(path, seed=4).labels, orders[0].labels)
    assert orders[0].options == {"seed": 3}
    assert load_samples(orders[0].spec, **orders[0].options).fingerprint() == orders[0].fingerprint()
    # The same order whether it is asked for at once or of samples that are loaded already.
    later = load_samples(load_samples(path), seed=3)
    assert (later.fingerprint(), later.options) == (orders[0].fingerprint(), orders[0].options)
    assert load_samples(later, seed=9) is later
    # A folder is sorted by class; the first of a random order are of all classes.
    assert len(set(load_samples(images).labels[:3].tolist())) == 1
    assert len(set(load_samples(images, seed=0).labels[:6].tolist())) == 3
    assert load_samples(images, seed=0).name(0).startswith(str(images))


def test_what_is_no_batch_is_refused():
    x, y = torch.from_numpy(FLOATS), torch.from_numpy(LABELS)
    refused("data of type int: give a .npz, .safetensors", 42)
    refused("holds no samples", iter(()))
    refused("batch 0 holds a single int: give batches", [(x[0], 1)])
    refused("batch 0 has 3 parts: give (inputs, labels)", [(x, x, y)])
    refused("batch 0 has 0 parts", [()])
    refused("batch 1 is made of other parts", [(x, y), x])
    refused("batch 1: of samples 'x' has 3, 'y' has 2", [(x, y), (x[:3], y[:2])])
    refused("samples of shapes (3,) and (4,): bring them to one shape", [x, x[:, :3]])
    refused("given as Python objects", load_samples(x).spec)


# What arrays are refused


def test_files_that_are_not_there_or_of_no_known_kind(tmp_path):
    refused("no such file or folder: give a .npz, .safetensors", str(tmp_path / "a.npz"))
    refused("no such file or folder", "hub:something")
    (tmp_path / "a.xyz").write_text("1,2")
    refused("unknown kind of data: give a .npz, .safetensors", str(tmp_path / "a.xyz"))


def test_arrays_that_do_not_fit(tmp_path):
    refused("'x' has 11, 'y' has 10", save(tmp_path / "a.npz", x=FLOATS, y=LABELS[:10]))
    refused("holds no samples", save(tmp_path / "b.npz", x=FLOATS[:0], y=LABELS[:0]))
    refused("holds no inputs: store them as 'x'", save(tmp_path / "c.npz", y=LABELS))
    refused("not (11, 3, 6, 5): transpose", PIXELS.transpose(0, 3, 1, 2))
    refused("not (11, 90): transpose or cast", PIXELS.reshape(11, -1))
    refused("mean, std and scale are for images in uint8", FLOATS, mean=0.5)
    refused("mean has 2 values, but the images have 3 channels: give 1 or 3", PIXELS, mean=[0.5, 0.5])
    refused("no std of 0", PIXELS, std=0)
    refused("12 samples asked for, it has 11: ask for 1 to 11", FLOATS, draw=12)
    refused("0 samples asked for", FLOATS, draw=0)
    refused("store numbers", save(tmp_path / "d.npz", x=np.array(["a", "b"])))


def test_bad_samples_are_named_by_their_place_in_the_file(tmp_path):
    broken = FLOATS.copy()
    broken[6, 2] = np.nan
    refused("sample 6 has NaN or infinity in 'x'", save(tmp_path / "a.npz", x=broken, y=LABELS))
    refused("sample 6 has NaN or infinity in 'x'", broken, draw=11, seed=1)
    broken[6, 2] = -np.inf
    refused("sample 6 has NaN or infinity in 'b'", {"a": FLOATS, "b": broken})
    drawn = load_samples((FLOATS, np.arange(11)), seed=1)
    assert [drawn.name(row) for row in range(11)] == [f"data: sample {label}" for label in drawn.labels]


def test_what_labels_may_be_is_left_to_the_task():
    assert load_samples((FLOATS, -FLOATS)).labels.shape == (11, 4)
    assert load_samples((FLOATS, LABELS - 1)).labels.min() == -1


def test_archives_that_are_damaged_or_could_run_code(tmp_path):
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{}, []], dtype=object))
    refused("holds Python objects (pickle), which could run code: store plain arrays", objects)
    whole = Path(save(tmp_path / "whole.npz", x=FLOATS)).read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[:-30])
    refused("not a numpy archive, or a damaged one", tmp_path / "short.npz")
    middle = len(whole) // 2
    (tmp_path / "flipped.npz").write_bytes(whole[:middle] + b"\xff\x00\xff" + whole[middle + 3 :])
    refused("Bad CRC-32", tmp_path / "flipped.npz")
    tensors = Path(save(tmp_path / "whole.safetensors", x=FLOATS)).read_bytes()
    (tmp_path / "short.safetensors").write_bytes(tensors[:-30])
    refused("not a .safetensors file, or a damaged one", tmp_path / "short.safetensors")


# Folders of images


@pytest.mark.parametrize("kept_bytes", [PIXELS.nbytes - 1, PIXELS.nbytes])
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_a_folder_is_the_same_however_many_decode_and_whether_kept(images, workers, kept_bytes, monkeypatch):
    monkeypatch.setattr(folder, "KEPT_BYTES", kept_bytes)
    samples = load_samples(images, workers=workers, mean=127, std=128, scale=1)
    order = [2, 5, 8, 0, 3, 6, 9, 1, 4, 7, 10]  # folders 007, 10 and 2
    expected = (torch.from_numpy(PIXELS[order]).permute(0, 3, 1, 2).float() - 127) / 128
    assert samples.labels.tolist() == [7] * 3 + [10] * 4 + [2] * 4
    assert torch.equal(torch.cat([batch.inputs for batch in samples.batches(2)]), expected)
    next(samples.batches(2))  # left off after one batch, as an early decision does
    assert torch.equal(torch.cat([batch.inputs for batch in samples.batches(3)]), expected)


def test_images_are_kept_if_all_that_are_drawn_fit(images, monkeypatch):
    monkeypatch.setattr(folder, "KEPT_BYTES", PIXELS[:5].nbytes)
    drawn, more = load_samples(images, draw=5), load_samples(images, draw=6)
    first, _ = drawn.inputs(slice(None)), more.inputs(slice(None))
    shutil.rmtree(images)
    assert torch.equal(drawn.inputs(torch.tensor([3, 1])), first[[3, 1]])
    with pytest.raises(DataError, match="no such image"):
        more.inputs(slice(None))


def test_an_image_whose_bytes_do_not_fit_their_checksum_is_refused(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(PIXELS[0]).save(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"IEND") - 6] ^= 1  # in the checksum of the pixels
    path.write_bytes(data)
    refused("a.png: not a readable image", tmp_path)


def test_classes_by_name_and_images_without_class(images):
    (images / "10").rename(images / "bird")
    assert load_samples(images).labels.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    assert load_samples(images / "bird").labels is None


def test_images_are_grey_only_if_all_are(tmp_path):
    Image.fromarray(PIXELS[0, ..., 0]).save(tmp_path / "a.png")
    assert load_samples(tmp_path).inputs(slice(None)).shape == (1, 1, 6, 5)
    Image.fromarray(PIXELS[1]).save(tmp_path / "b.png")
    assert load_samples(tmp_path).inputs(slice(None)).shape == (2, 3, 6, 5)


def test_a_folders_fingerprint_sees_bytes_names_and_draw(images):
    prints = [load_samples(images).fingerprint(), load_samples(images, draw=5).fingerprint()]
    (images / "2" / "04.PNG").rename(images / "2" / "05.PNG")
    prints.append(load_samples(images).fingerprint())
    Image.fromarray(PIXELS[0]).save(images / "2" / "05.PNG")
    prints.append(load_samples(images).fingerprint())
    assert len(set(prints)) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_images_are_named(images, workers):
    path = images / "10" / "09.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 60])  # the header is whole: found when it is decoded
    refused("09.png: not a readable image", images, workers=workers)
    path.write_bytes(b"text")
    refused("09.png: not a readable image", images, workers=workers)


def test_folders_that_do_not_fit(images, tmp_path):
    Image.fromarray(PIXELS[0, :4]).save(images / "2" / "small.png")
    refused("small.png: is 5×4, but", images)
    (images / "2" / "small.png").unlink()
    Image.fromarray(PIXELS[0, ..., 0].astype(np.uint16)).save(images / "2" / "deep.png")
    refused("deep.png: pixels of mode I;16 are not bytes", images)
    (images / "2" / "deep.png").rename(images / "stray.png")
    refused("stray.png: lies beside sub-folders", images)
    (tmp_path / "empty" / "0").mkdir(parents=True)
    refused("no images in it or its sub-folders", tmp_path / "empty")


def test_images_need_pillow(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"bitsect\[images\]"):
        load_samples(images)


def test_copies_are_known_by_their_inputs(tmp_path: Path) -> None:
    """Whatever holds the samples: tensors, tokens of any length, or image files."""
    x = torch.arange(12.0).reshape(4, 3)
    rows = [{"input_ids": torch.tensor([ids])} for ids in ([1, 2], [1, 2, 0], [1, 2], [3])]
    pair = {"a": x[:, 0], "b": x[:, 1:] > 4}
    for name, value in {"one.png": 1, "two.png": 2, "again.png": 1}.items():
        Image.fromarray(np.full((2, 2), value, np.uint8)).save(tmp_path / name)
    assert fresh(load_samples(x[[0, 1, 0, 2]]), load_samples(x[2:])).tolist() == [0, 1]
    assert fresh(load_samples(rows), load_samples([rows[3], rows[1]])).tolist() == [0]
    assert fresh(load_samples(pair), load_samples({k: v[:1] for k, v in pair.items()})).tolist() == [1, 2, 3]
    assert seen_before(load_samples(tmp_path), load_samples(tmp_path, draw=1, seed=0)) in (1, 2)
    assert len(fresh(load_samples(tmp_path), load_samples(tmp_path).select(torch.tensor([2])))) == 1


def test_copies_may_differ_in_their_last_digits() -> None:
    """What differs as much as neighbours do is no copy, however little that is."""
    images, more = seeded(300, 1, 12, 12), seeded(20, 1, 12, 12, seed=3)
    images[:, :, 0] = 0  # a border that never changes
    moved = torch.cat([images + 1e-6, images.half().float(), more, more + 1e-6])
    assert fresh(load_samples(moved), load_samples(images)).tolist() == [*range(600, 620)]
    assert seen_before(load_samples(moved), load_samples(more), load_samples(images)) == 640
    one_hot = torch.eye(40).repeat_interleave(2, 0)
    table = torch.stack([torch.arange(60.0) % 6 * 1e6, torch.arange(60.0) / 1e3], 1)
    for x in (one_hot[::2], table, torch.arange(500.0)[:, None] / 1e5, torch.arange(200)[:, None]):
        assert len(fresh(load_samples(x[1::2]), load_samples(x[::2]))) == len(x) // 2
    pair = {"a": torch.ones(30, 4), "id": torch.arange(30)}
    assert len(fresh(load_samples(pair), load_samples({k: v[:5] for k, v in pair.items()}))) == 25
    dense = {"a": images, "id": torch.arange(300)}
    ids = {"a": images + 1e-6, "id": torch.arange(300) + torch.arange(300) % 2}
    assert seen_before(load_samples(ids), load_samples(dense)) == 150
    assert len(fresh(load_samples(images[:1] + 1e-6), load_samples(images[:1]))) == 1  # one tells no distance


def test_labels_may_be_a_plain_list_and_a_list_is_no_pair():
    x = torch.randn(3, 2)
    samples = load_samples((x, [2, 0, 1]))
    assert samples.labels.tolist() == [2, 0, 1]
    assert torch.equal(samples.inputs(slice(None)), x)
    with pytest.raises(DataError, match=r"shapes \(\) and \(2,\): .* are a tuple, \(inputs, labels\)"):
        load_samples([x, torch.tensor([2, 0, 1])])


def test_arrays_of_another_byte_order_are_read(tmp_path):
    x = np.arange(6.0, dtype=">f4").reshape(3, 2)
    np.savez(tmp_path / "big.npz", x=x, y=np.arange(3, dtype=">i8"))
    samples = load_samples(tmp_path / "big.npz")
    assert samples.inputs(slice(None)).tolist() == x.tolist()
    assert samples.labels.tolist() == [0, 1, 2]


def test_lists_of_images_and_single_graphs_are_told_the_way_out():
    images = [torch.zeros(3, 4, 4)] * 5
    for batch in ([images], [(images, torch.zeros(5))]):
        with pytest.raises(DataError, match=r"a list of tensors: stack them .* calls it with list\(x\)"):
            load_samples(batch)
    graph = (torch.zeros(40, 8), torch.zeros(2, 90).long())
    with pytest.raises(DataError, match=r"'0' has 40, '1' has 2: the first axis .* for graph in zip"):
        load_samples([(graph,)])
    three = [torch.zeros(5, 7)] * 3  # several inputs of one shape are no images
    assert len(load_samples([(three, torch.zeros(5).long())])) == 5


# Before anything is decoded


def claiming(path: Path, shape: tuple[int, ...]) -> str:
    """An archive of a few kilobytes whose array is that large, all zeros."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(shape[0]):
            file.write(bytes(4 * math.prod(shape[1:])))
    return str(path)


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be decoded."""
    for name in ("bitsect.sources.data.files._read_member", "bitsect.sources.data.folder.decode"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("decoded"))


@pytest.mark.usefixtures("undecoded")
def test_samples_of_another_shape_than_the_networks_are_not_decoded(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    program = torch.export.export(
        network, (torch.zeros(2, 1, 4, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    large = tmp_path / "large"
    large.mkdir()
    for number in range(3):
        Image.new("1", (3000, 3000)).save(large / f"{number}.png")
    tensor = tmp_path / "x.safetensors"
    save_file({"x": torch.zeros(4, 300, 300)}, tensor)
    for data, given in (
        (claiming(tmp_path / "x.npz", (2, 1000, 1000)), "1000×1000"),
        (str(large), "1×3000×3000"),
        (str(tensor), "300×300"),
    ):
        for model in (tmp_path / "net.pt2", program):
            with pytest.raises(DataError, match=f"samples of 'x' are {given}, the network takes 1×4×4"):
                bitsect.evaluate(model, data, threads=1)


@pytest.mark.usefixtures("undecoded")
def test_samples_that_do_not_fit_into_memory_are_not_decoded(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = claiming(tmp_path / "x.npz", (100, 1000, 10))
    save_file({"x": torch.zeros(100, 1000, 10)}, tmp_path / "x.safetensors")
    (tmp_path / "x.csv").write_text("text\n" + "a\n" * 500_000)
    sources = (whole, tmp_path / "x.safetensors", tmp_path / "x.csv")
    for data in sources:
        with pytest.raises(DataError, match=r"about \d MB of memory are needed, and memory allows 1 MB"):
            load_samples(data, reading=Reading(room=Room(limit=1_000_000)))
    with pytest.raises(DataError, match=r"images of 5×6: about 0 MB of memory are needed, and memory allows"):
        load_samples(images, reading=Reading(room=Room(limit=100)))
    monkeypatch.setattr("bitsect.sources.room.free_bytes", lambda: 1e6)
    for data in sources:
        with pytest.raises(DataError, match=r"and what may be used is 1 MB: give fewer .* memory='SIZE'"):
            load_samples(data)


def test_samples_count_as_memory(tmp_path: Path) -> None:
    data = (torch.randn(1000, 500), torch.arange(1000) % 4)
    with pytest.raises(RunError, match=r"and memory='2MB' allows 0 MB besides the samples"):
        bitsect.sensitivity(nn.Linear(500, 4), data, memory="2MB", threads=1)
    bitsect.sensitivity(nn.Linear(500, 4), data, memory="200MB", threads=1)


def test_only_the_formats_that_are_meant_are_opened(tmp_path: Path) -> None:
    """Pillow goes by what a file begins with: PostScript would be handed to another program."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\nshowpage\n%%EOF\n")
    refused("not a readable image", tmp_path)
    picture = Image.new("RGB", (4, 4))
    kinds = {".bmp": "BMP", ".gif": "GIF", ".jpg": "JPEG", ".png": "PNG", ".ppm": "PPM", ".tif": "TIFF"}
    for suffix, kind in {**kinds, ".webp": "WEBP"}.items():
        picture.save(tmp_path / f"a{suffix}", format=kind)
    assert len(load_samples(tmp_path)) == 7
    for other in ("PCX", "TGA", "ICO", "SGI"):
        picture.save(tmp_path / "a.png", format=other)
        refused("not a readable image", tmp_path)


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.csv", "x.json"])
def test_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    refused("not a file, but a pipe or a device", tmp_path / name)
