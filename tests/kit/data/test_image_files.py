"""Healthy image files of every depth, color and number of frames, as people have them."""

import numpy as np
import pytest
from experiment_kit.data.folders import list_visible_files
from experiment_kit.data.image_files import UnreadableImageError, load_image, note_frames
from PIL import Image

RAMP = np.linspace(0, 65535, 256).astype(np.uint16)[None]
PALETTE = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
PALETTE.putpalette([255, 0, 0, 0, 0, 255])
UPRIGHT = Image.fromarray(np.array([[0, 0], [0, 0], [255, 255]], np.uint8))  # 2 x 3, white below
TURNED = Image.Exif()
TURNED[0x0112] = 6
WHITE, BLACK, GREY, RED, BLUE = [255] * 3, [0] * 3, [127] * 3, [255, 0, 0], [0, 0, 255]


def draw(mode: str, *pixels: object) -> Image.Image:
    image = Image.new(mode, (len(pixels), 1))
    image.putdata(pixels)
    return image


STRANGE = {
    "L.JPG": (draw("L", 255, 255), {}, [WHITE, WHITE]),
    "LA.png": (draw("LA", (0, 255), (0, 0), (0, 128)), {}, [BLACK, WHITE, GREY]),
    "unset.png": (draw("RGBA", (255, 0, 0, 0), (0, 0, 255, 0)), {}, [RED, BLUE]),
    "empty.png": (draw("RGBA", (0, 0, 0, 0)), {}, [WHITE]),
    "dark.pgm": (draw("I;16", 0, 200), {}, [BLACK, BLACK]),
    "signed.tif": (draw("I;16", 0, 200), {"tiffinfo": {339: 2}}, [BLACK, BLACK]),
    "RGBA.png": (draw("RGBA", (255, 0, 0, 255), (0, 0, 0, 0)), {}, [RED, WHITE]),
    "La.tif": (draw("LA", (0, 255), (0, 0)), {"tiffinfo": {338: 1}}, [BLACK, WHITE]),
    "RGB_key.png": (draw("RGB", (255, 0, 0), (1, 2, 3)), {"transparency": (1, 2, 3)}, [RED, WHITE]),
    "L_key.png": (draw("L", 0, 7), {"transparency": 7}, [BLACK, WHITE]),
    "P_key.png": (PALETTE, {"transparency": 1}, [RED, WHITE]),
    "P.gif": (PALETTE, {"transparency": 1}, [RED, WHITE]),
    "CMYK.tif": (draw("CMYK", (0, 255, 255, 0), (0, 0, 0, 255)), {}, [RED, BLACK]),
    "I16_key.png": (draw("I;16", 65535, 9), {"transparency": 9}, [WHITE, WHITE]),
    "I8.tif": (Image.fromarray(np.array([[0, 127, 255]], np.int32)), {}, [BLACK, GREY, WHITE]),
    "animated.gif": (PALETTE, {"append_images": [draw("L", 9, 9)], "save_all": True}, [RED, BLUE]),
    "pages.tif": (draw("L", 0, 255), {"append_images": [draw("L", 9, 9)], "save_all": True},
                  [BLACK, WHITE]),
    "frames.png": (draw("L", 0, 255), {"append_images": [draw("L", 9, 9)], "save_all": True},
                   [BLACK, WHITE]),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_colors_are_those_on_white_of_the_first_frame(name, tmp_path, capsys) -> None:
    image, options, pixels = STRANGE[name]
    image.save(tmp_path / name, **options)
    loaded = load_image(tmp_path / name)
    assert (loaded.mode, np.asarray(loaded)[0].tolist()) == ("RGB", pixels)
    note_frames([tmp_path / name])
    several = "save_all" in options
    assert (f"1 images have several frames or pages, of which the first is read: {name}" in
            capsys.readouterr().err) == several  # fmt: skip


def test_what_systems_add_to_folders_is_not_listed(tmp_path) -> None:
    names = ["._a.txt", ".git/b.txt", "__MACOSX/c/d.txt", "e/.ipynb_checkpoints/f.txt"]
    for name in [*names, "h/i.TXT", "a.txt", "b.txt.zip"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "h/loop").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "h")
    found = [str(path.relative_to(tmp_path)) for path in list_visible_files(tmp_path, ".txt")]
    assert found == ["a.txt", "h/i.TXT", "link/i.TXT"]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "big.tif", "i.tif", "white.tif"])
def test_of_16_bits_the_upper_8_are_kept(name, tmp_path) -> None:
    image = Image.fromarray(RAMP.astype({"i.tif": np.int32, "big.tif": ">u2"}.get(name, "<u2")))
    image.save(tmp_path / name, **({"tiffinfo": {262: 0}} if "white" in name else {}))
    pixels = np.asarray(load_image(tmp_path / name))
    ramp = np.repeat(RAMP[..., None] >> 8, 3, 2)
    assert np.array_equal(pixels, 255 - ramp if "white" in name else ramp)


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_12_bits_are_scaled_by_their_tag_and_noted_without_it(kind, tmp_path, capsys) -> None:
    values = np.array([[0, 2048, 4095, 16]], np.uint16)
    packed = np.array([0, 8, 0, 255, 240, 16], np.uint8)  # 000 800 FFF 010
    Image.fromarray(values.astype(kind)).save(tmp_path / "16.tif")
    Image.fromarray(values).save(tmp_path / "12.tif")
    assert np.asarray(load_image(tmp_path / "16.tif"))[0, :, 0].tolist() == [0, 8, 15, 0]
    assert "below 4096 of 16 bits: the upper 8 are read" in capsys.readouterr().err
    data = (tmp_path / "12.tif").read_bytes().replace(values.tobytes(), packed.tobytes() + b"\0\0")
    bits = bytes.fromhex("0201 0300 0100 0000")  # BitsPerSample, one short
    (tmp_path / "12.tif").write_bytes(data.replace(bits + b"\x10", bits + b"\x0c"))
    assert np.asarray(load_image(tmp_path / "12.tif"))[0, :, 0].tolist() == [0, 128, 255, 1]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "a.webp", "grey.tif"])
def test_an_image_is_turned_as_its_exif_data_say(name, tmp_path) -> None:
    lying = UPRIGHT.convert("L" if "grey" in name else "RGB").transpose(Image.Transpose.ROTATE_90)
    lying.save(tmp_path / name, exif=TURNED)
    pixels = np.asarray(load_image(tmp_path / name))[..., 0]
    assert np.array_equal(pixels > 127, np.asarray(UPRIGHT) > 127)


NUMBERS = "its pixels are {}: save them as 0 to 65535"


@pytest.mark.parametrize(("pixels", "options", "sentence"), [
    (np.zeros((2, 2), np.float32), {}, "its pixels are of floating point: save them as whole"),
    (np.full((2, 2), 70000, np.int32), {}, NUMBERS.format("70000 to 70000")),
    (np.full((2, 2), -9, np.int32), {}, NUMBERS.format("-9 to -9")),
    (np.zeros((2, 2), np.uint8), {339: 2}, "its pixels are signed: save them as 0 to 255"),
    (np.zeros((2, 2), np.uint8), {339: 3}, "Pillow knows no such image: save it as PNG of 8 or"),
])  # fmt: skip
def test_pixels_without_a_scale_are_refused(pixels, options, sentence, tmp_path) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.tif", tiffinfo=options)
    with pytest.raises(UnreadableImageError, match=f"a.tif cannot be read: {sentence}"):
        load_image(tmp_path / "a.tif")


def test_planes_and_palettes_of_other_bits_and_any_number_of_pixels(tmp_path, capsys) -> None:
    draw("RGB", (1, 2, 3)).save(tmp_path / "a.tif")
    data = (tmp_path / "a.tif").read_bytes().replace(b"\x08\0" * 3, b"\x10\0" * 3)
    (tmp_path / "a.tif").write_bytes(data + bytes(9))
    load_image(tmp_path / "a.tif")
    assert "below 4096 of 16 bits" in capsys.readouterr().err
    one, two = (bytes.fromhex(f"1c01 0300 0100 0000 {n}") for n in ("01", "02"))
    (tmp_path / "a.tif").write_bytes(data.replace(one, two) + bytes(9))
    with pytest.raises(UnreadableImageError, match="its planes of 16 bits are apart"):
        load_image(tmp_path / "a.tif")
    PALETTE.save(tmp_path / "b.tif")  # 0xff00 in 16 bits
    data = (tmp_path / "b.tif").read_bytes().replace(b"\0\xff", b"\xff\0")
    (tmp_path / "b.tif").write_bytes(data)
    assert np.asarray(load_image(tmp_path / "b.tif"))[0].tolist() == [RED, BLUE]
    (tmp_path / "a.pgm").write_bytes(b"P5 20000 20000 255 ")
    with pytest.raises(UnreadableImageError, match="image file is truncated"):
        load_image(tmp_path / "a.pgm")
