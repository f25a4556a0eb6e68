"""ImageNet and its relatives: folders of classes, and files that cannot be read."""

from pathlib import Path

import pytest
import torch
from attention_vision import APP
from attention_vision.data import ImageFolder, ImageFolders
from attention_vision.data.image_folders import IMAGENET_100
from experiment_kit.cli import run_app
from experiment_kit.commands.predict import predict_files
from experiment_kit.errors import UserError
from PIL import Image

from tests.apps.contract import find_run
from tests.apps.vision.data.test_base import PLAIN


def save_image(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (value, 0, 0)).save(path)


def red(image: torch.Tensor) -> float:
    return (image[0].mean().item() * 0.229 + 0.485) * 255


CLASSES = ("cat", "dog", "elk")


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    for split, count in (("train", 10), ("val", 4)):
        for number, name in enumerate(CLASSES):
            for index in range(count):
                save_image(tmp_path / f"imagenet/{split}/{name}/{index}.JPEG", 80 * number)
    for hidden in ("train/.git/1.jpg", "val/__MACOSX/1.jpg", "val/cat/.ipynb_checkpoints/1.jpg"):
        save_image(tmp_path / "imagenet" / hidden, 0)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    return tmp_path


def load_splits(root: Path, listing: str | None = "classes.txt", **options) -> ImageFolders:
    classes = str(root / listing) if listing else None
    settings = {"val_fraction": 0.2, "batch_size": 4, "image_size": 16, "augment": PLAIN} | options
    data = ImageFolders("ImageNet-1k", classes, data_dir=str(root), **settings)
    data.setup("fit")
    data.setup("test")
    return data


def test_folders_are_classes_in_the_order_of_their_names(imagenet) -> None:
    data = load_splits(imagenet)
    assert data.num_classes == 3
    sizes = {name: len(split) for name, split in data.splits.items()}
    assert sizes == {"train": 24, "val": 6, "test": 12}
    for image, label in data.splits["test"]:
        assert red(image) == pytest.approx(80 * label, abs=3)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def test_training_replaces_a_corrupt_image_by_the_next_readable_one(imagenet, capfd) -> None:
    for index in (3, 4):
        damage(imagenet / f"imagenet/train/cat/{index}.JPEG")
    data = load_splits(imagenet, protocol="test", num_workers=2)
    assert sum(len(labels) for _, labels in data.train_dataloader()) == 28
    image, label = data.splits["train"][3]
    assert torch.equal(image, data.splits["train"][5][0])
    assert label == 0
    data.teardown("fit")
    warnings = capfd.readouterr().err
    assert warnings.count("cat/3.JPEG cannot be read") == 1
    assert "training uses the next readable image instead" in warnings
    assert "2 of 30 training images were replaced" in warnings


def test_evaluation_leaves_corrupt_images_out_or_ends_at_them(imagenet, capsys) -> None:
    damage(imagenet / "imagenet/val/dog/1.JPEG")
    (imagenet / "imagenet/val/elk/2.JPEG").write_bytes(b"")
    data = load_splits(imagenet)
    assert [int(label) for _, label in data.splits["test"]] == [0] * 4 + [1] * 3 + [2] * 3
    warnings = capsys.readouterr().err
    assert "dog/1.JPEG cannot be read" in warnings
    assert "2 of 12 images" in warnings
    unchecked = load_splits(imagenet, verify=False)
    assert len(unchecked.splits["test"]) == 12
    with pytest.raises(UserError, match=r"val/dog/1.JPEG cannot be read"):
        list(unchecked.test_dataloader())


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_any_readable_image_is_refused(split, imagenet) -> None:
    for path in (imagenet / "imagenet" / split).rglob("*.JPEG"):
        damage(path)
    with pytest.raises(UserError, match=r"none of the \d+ images under .*/(train|val) can be read"):
        load_splits(imagenet)


@pytest.mark.parametrize(("change", "listing", "sentence"), [
    (None, None, "train has 3 class folders, and ImageNet-1k has 1000"),
    ("train/cat", "classes.txt", r"train lacks 1 of the classes \(cat\) of .*classes.txt"),
    ("val/dog", "classes.txt", r"val lacks 1 of the classes \(dog\) that train has"),
    ("train/*/*", "classes.txt", r"train has no image in 3 of the classes \(cat, dog, elk\)"),
    ("val/*", "classes.txt", "val has no folder for each class"),
    ("val", "classes.txt", r"no imagenet in DATA_DIR .*allpass data imagenet"),
])  # fmt: skip
def test_folders_that_do_not_fit_are_refused(change, listing, sentence, imagenet) -> None:
    for path in (imagenet / "imagenet").glob(change) if change else ():
        path.rename(imagenet / f"{path.parent.name}-{path.name}")
    with pytest.raises(UserError, match=sentence):
        load_splits(imagenet, listing)


def test_classes_of_val_that_train_lacks_are_refused(imagenet, monkeypatch) -> None:
    info = ImageFolders.DATASETS["ImageNet-1k"]._replace(num_classes=3)
    monkeypatch.setattr(ImageFolders, "DATASETS", {"ImageNet-1k": info})
    assert len(load_splits(imagenet, listing=None).splits["test"]) == 12
    save_image(imagenet / "imagenet/val/fox/0.JPEG", 0)
    with pytest.raises(UserError, match=r"val has 1 of the classes \(fox\) that train does not"):
        load_splits(imagenet, listing=None)


def test_a_list_chooses_among_more_classes_as_imagenet_100_does(imagenet) -> None:
    (imagenet / "two.txt").write_text("elk\n cat\n", encoding="utf-8-sig")
    data = load_splits(imagenet, listing="two.txt")
    assert data.num_classes == 2
    assert [int(label) for _, label in data.splits["test"]] == [0] * 4 + [1] * 4
    assert len(set(IMAGENET_100.read_text().split())) == 100
    with pytest.raises(UserError, match=r"train lacks 100 of the classes \(n01558993, "):
        ImageFolders("ImageNet-100", data_dir=str(imagenet)).setup("fit")


@pytest.mark.parametrize("place", ["images", "{}/images"])
def test_tiny_imagenet_is_read_in_its_own_layout_and_in_folders(place, tmp_path) -> None:
    folder, lines = tmp_path / "tiny-imagenet-200", []
    for number in range(200):
        name = f"n{number:08d}"
        save_image(folder / f"train/{name}/images/{name}_0.JPEG", number)
        save_image(folder / "val" / place.format(name) / f"val_{number}.JPEG", number)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(reversed(lines)) + "\n")
    options = {"data_dir": str(tmp_path), "protocol": "test", "image_size": 8, "augment": PLAIN}
    data = ImageFolders("Tiny-ImageNet", **options)
    data.setup("fit")
    assert len(data.splits["train"]) == len(data.splits["test"]) == 200
    image, label = data.splits["test"][0]
    assert (label, red(image)) == (199 * (place == "images"), pytest.approx(label, abs=3))


# names in the folder, of which one with a slash stands for 4 cats and 4 dogs; numbers of images to
# train, validate and test, and the folder of these; the end of the note
FIFTH, APART, OWN = (4, 2, 2, "photos"), (6, 2, 8), (8, 8, 8, "test")
LAYOUTS = [
    ("/", FIFTH, ""),
    ("/ .ipynb_checkpoints/ cat/.git/a.png __MACOSX/cat/._1.jpg @eaDir/1.jpg cat/._1.jpg", FIFTH,
     "photos that are not read: 12 hidden\n"),
    ("/ 9.jpg cat/a.pdf cat/a/5.JFIF dog/5.gif", (6, 2, 2, "photos"),
     "photos that are not read: 1 .pdf, 1 outside of the classes\n"),
    ("train/", (4, 2, 2, "train"), ""),
    *((f"train/ {name}/", (*APART, name), "") for name in ("val", "valid", "evaluation", "test")),
    ("Training/ Testing/ __MACOSX/", (*APART, "Testing"), "__MACOSX is not read: 8 images\n"),
    ("training_set/ test_set/ 1.jpg", (*APART, "test_set"), "photos/1.jpg is not read: 1 images\n"),
    *((f"train/ {name}/ test/", OWN, "") for name in ("val", "validate", "dev", "eval")),
    ("training/ validation/ evaluation/", (8, 8, 8, "evaluation"), ""),
    ("/ cat/2_mask.png", (5, 2, 2, "photos"), "cat/2_mask\n"),
    ("train/ val/ valid/ test/", OWN, "photos/valid is not read: 8 images\n"),
    ("seg_train/ seg_test/ pred/", (*APART, "seg_test"), "photos/pred is not read: 8 images\n"),
    ("01_train1/ 02_test1/", (*APART, "02_test1"), ""),
    ("train_val/ tests/", (*APART, "tests"), ""),
    ("train.X1/ val.X/", (*APART, "val.X"), ""),
    ("aug_train/1/1.jpg train/ test/", (*APART, "test"), "aug_train is not read: 1 images\n"),
    ("/ cat/x/1.jpg cat/y/1.jpg dog/y/1.jpg", (7, 2, 2, "photos"), "inside of them: x, y\n"),
    ("train/ test/ more/", (*APART, "test"), "photos/more is not read: 8 images\n"),
    ("train/ test/1.jpg", (4, 2, 2, "train"), "photos/test is not read: 1 images\n"),
    ("train/ val/ test/1.jpg", (*APART, "val"), "photos/test is not read: 1 images\n"),
]  # fmt: skip


def draw_folder(folder: Path, names: str) -> None:
    files = "cat/1.jpg cat/2.PNG cat/3.webp cat/4.Tif dog/1.bmp dog/2.jpeg dog/3.avif dog/4.ppm"
    for name in names.split():
        for image in files.split() if name.endswith("/") else [""]:
            save_image(folder / name.strip("/") / image, 0)


@pytest.mark.parametrize(("names", "sizes", "note"), LAYOUTS)
def test_own_folders_are_split_as_their_names_say(names, sizes, note, tmp_path, capsys) -> None:
    draw_folder(tmp_path / "photos", names)
    options = {"folder": "photos", "data_dir": str(tmp_path), "image_size": 8}
    data = ImageFolder(val_fraction=0.25, **options)
    data.setup("fit")
    data.setup("test")
    assert (data.num_classes, data.label_names) == (2, ["cat", "dog"])
    found = [len(data.splits[split]) for split in ("train", "val", "test")]
    assert (*found, data.sources[1].root.name) == sizes
    said = capsys.readouterr().err
    assert (said.endswith(note), bool(said)) == (True, bool(note))


def test_links_to_folders_above_and_what_drives_add_are_no_classes(tmp_path, capsys) -> None:
    names = "freight_train/1.jpg images_1/1.jpg"
    draw_folder(tmp_path / "photos", f"/ {names} @Recycle/1.jpg #snapshot/1.jpg")
    (tmp_path / "photos/test.txt").touch()
    for place in ("photos", "photos/cat"):
        (tmp_path / place / "photos").symlink_to("..")  # by `ln -s` again
    (tmp_path / "photos/lost+found").mkdir()
    data = ImageFolder(folder=str(tmp_path / "photos"), image_size=8)
    assert data.label_names == ["cat", "dog", "freight_train", "images_1"]
    assert sum(len(images.labels) for images in data.read_images()) == 10
    assert "photos/test.txt is not read\n" in capsys.readouterr().err
    (tmp_path / "photos/freight_train/cat").mkdir()
    (tmp_path / "list").write_text("cat\nfreight_train\n")
    data = ImageFolder(folder="photos", data_dir=str(tmp_path), classes=str(tmp_path / "list"))
    assert data.folders["train"].name == "photos"


@pytest.mark.parametrize(("names", "sentence"), [
    ("test/ val/", "photos has test, val and no train with a folder for each class"),
    ("train/1.jpg test/1.jpg", "photos has test, train and no train with a folder for each class"),
    ("seg_train/seg_train/ seg_test/", "seg_train has one class: name a folder of two or more"),
    ("x/train/cat/1.jpg", "photos/x is split: data.folder names it"),
    ("cat/train/1.jpg dog/train/1.jpg", "photos/cat is split: put its classes in .*/train"),
    ("images/1.jpg masks/1.jpg", "photos has images, masks, which are no classes: name"),
    ("x_images_part_1/1.jpg x_images_part_2/1.jpg", "_part_1, x_images_part_2, which are no cla"),
    ("amazon/images/ webcam/images/", "photos has cat, dog inside of amazon, webcam: if"),
    ("car/ train/", "photos has car beside train: name all that are classes in a file"),
    ("fold1/ fold2/", "photos has cat, dog inside of fold1, fold2: if fold1, fold2 are"),
    ("/ photos/", "photos has cat, dog inside of photos: if cat, dog, photos are the classes"),
    ("train_1/ train_2/ test/", "photos has train_1 and train_2: join them, or move one away"),
])  # fmt: skip
def test_own_folders_without_classes_are_refused(names, sentence, tmp_path) -> None:
    draw_folder(tmp_path / "photos", names)
    with pytest.raises(UserError, match=sentence):
        ImageFolder(folder="photos", data_dir=str(tmp_path))


def test_a_run_answers_by_the_classes_of_its_training(imagenet, monkeypatch, read_error) -> None:
    monkeypatch.chdir(imagenet)
    line = "fit -c base -c data/image_folder --data.data_dir=. --data.folder=imagenet"
    line += " --run.folder=x --data.image_size=16 --data.classes=classes.txt"
    epoch = "--trainer.max_epochs=1"
    run_app(APP, [*line.split(), epoch, "--model.model_kwargs={depth: 1, patch_size: 8}"])
    run, image = str(find_run(imagenet / "x").folder), "imagenet/val/dog/1.JPEG"
    save_image(imagenet / "imagenet/train/dog/new.png", 0)
    predict_files(run, [image])
    assert "new.png was added or removed" in read_error(run_app, APP, ["test", run])
    (imagenet / "classes.txt").write_text("cat\nelk")
    changed = run_app, APP, ["test", run, "--data.batch_size=9"]
    for command in ((predict_files, run, [image]), changed):
        assert "other classes or splits: they are now without 'dog':" in read_error(*command)
