"""Pictures: formats, limits, orientation, transparency, colour, and the one resize."""

from __future__ import annotations

import base64
import io
import random
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from pathlib import Path

import pytest
from PIL import Image as pil
from PIL import ImageChops, ImageCms, ImageStat

from openjev_cli import errors, images

CASES = Path(__file__).resolve().parents[1] / "cases"


# ---------------------------------------------------------------------------------------------- making them


def photo(width: int, height: int, seed: int = 7) -> pil.Image:
    """A picture with gradients and soft random blobs, different in every corner."""
    source = random.Random(seed)
    small = pil.new("RGB", (8, 6))
    small.putdata([tuple(source.randrange(256) for _ in range(3)) for _ in range(48)])
    return small.resize((width, height), pil.Resampling.BICUBIC)


def saved(picture: pil.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand. rows: the filter bytes included."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), *(chunk(*one) for one in extra)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [*chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    )


def pixels(image: images.Image) -> pil.Image:
    """Decode what is sent, as any BMP reader does."""
    picture = pil.open(io.BytesIO(image.data))
    assert (picture.format, picture.mode) == ("BMP", "RGB")
    assert picture.size == (image.width, image.height)
    return picture


def difference(one: pil.Image, other: pil.Image) -> tuple[float, int]:
    """Return the mean and the largest difference of two pictures' values."""
    stat = ImageStat.Stat(ImageChops.difference(one, other))
    return sum(stat.mean) / len(stat.mean), max(high for _, high in stat.extrema)


def load(data: bytes, name: str = "x", **options: int) -> images.Image:
    return images.from_bytes(data, name=name, **options)


def case(name: str) -> images.Image:
    return load((CASES / name).read_bytes(), name)


def refusal(data: bytes, name: str = "x") -> str:
    with pytest.raises(errors.InputError) as caught:
        load(data, name)
    assert caught.value.next_step
    assert "\n" not in caught.value.message
    return caught.value.message


# ---------------------------------------------------------------------------------------- sizes and tokens


def test_a_picture_on_the_grid_is_sent_pixel_by_pixel() -> None:
    screenshot = photo(448, 672)
    image = load(saved(screenshot, "PNG"))
    assert (image.width, image.height, image.n_tokens) == (448, 672, 14 * 21)
    assert pixels(image).tobytes() == screenshot.tobytes()


def test_a_picture_within_the_budget_keeps_its_pixels_and_is_filled_up_with_its_edge() -> None:
    small = photo(250, 150)
    sent = pixels(load(saved(small, "PNG")))
    assert sent.size == (256, 160)
    assert sent.crop((0, 0, 250, 150)).tobytes() == small.tobytes()
    assert (
        sent.crop((250, 0, 256, 150)).tobytes() == small.crop((249, 0, 250, 150)).resize((6, 150)).tobytes()
    )
    corner = small.getpixel((249, 149))
    assert {sent.getpixel((x, y)) for x in range(250, 256) for y in range(150, 160)} == {corner}


def test_a_larger_picture_is_resized_once_straight_to_the_encoders_size() -> None:
    large = photo(1500, 1100)
    image = load(saved(large, "PNG"))
    assert (image.width, image.height) == images.encoder_size(1500, 1100, 512) == (832, 608)
    assert pixels(image).tobytes() == large.resize((832, 608), pil.Resampling.BICUBIC).tobytes()


@pytest.mark.parametrize(
    ("width", "height", "budget", "size"),
    [
        # By hand from llama.cpp's arithmetic; the integration tests ask the engine about 200 more.
        (1, 1, 512, (96, 96)),
        (16, 16, 512, (96, 96)),
        (1, 255, 512, (32, 256)),
        (33, 250, 512, (32, 256)),
        (2048, 1536, 512, (832, 608)),
        (4032, 3024, 512, (832, 608)),
        (448, 672, 512, (448, 672)),
        (700, 740, 512, (704, 736)),
        (700, 740, 64, (224, 256)),
    ],
)
def test_encoder_size(width: int, height: int, budget: int, size: tuple[int, int]) -> None:
    assert images.encoder_size(width, height, budget) == size


def test_every_size_stays_within_budget_and_encoder_limits_and_on_the_grid() -> None:
    source = random.Random(1)
    sides = [1, 2, 15, 16, 31, 32, 33, 48, 255, 256, 257, 10_000, 65_535, 300_000]
    sizes = [(w, h) for w in sides for h in sides if w * h <= images.MAX_PIXELS]
    while len(sizes) < 3000:
        width = int(2 ** source.uniform(0, 16))
        sizes.append((width, int(2 ** source.uniform(0, 24)) // width + 1))
    for width, height in sizes:
        for budget in (16, 17, 23, 100, 512, 4096):
            (wide, high), is_resized = images.sent_size(width, height, budget)
            tokens = wide * high // 1024
            assert (wide % 32, high % 32) == (0, 0)
            assert 8 <= tokens <= budget, (width, height, budget, wide, high)
            # The encoder would leave a picture of that size alone.
            assert images.encoder_size(wide, high, 4096) == (wide, high)
            if not is_resized:
                assert 0 <= wide - width < 32
                assert 0 <= high - height < 32


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (65_535, 3), (3, 65_535), (65_535, 305)])
def test_odd_shapes_are_read(size: tuple[int, int]) -> None:
    image = load(saved(pil.new("L", size, 77), "PNG"))
    assert 8 <= image.n_tokens <= 512
    assert pixels(image).getextrema() == ((77, 77),) * 3


def test_budget_names_its_range() -> None:
    assert images.budget(16) == 16
    with pytest.raises(errors.InputError, match="--image-tokens 15: not between 16 and 4096"):
        images.budget(15)


# ------------------------------------------------------------------------------------------- ten encodings


def exif(orientation: int) -> bytes:
    block = pil.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def encodings(upright: pil.Image) -> dict[str, bytes]:
    rgba = upright.convert("RGBA")
    deep = bytearray(6 * upright.width * upright.height)
    deep[0::2] = deep[1::2] = upright.tobytes()
    stride = 6 * upright.width
    deep_rows = b"".join(b"\0" + deep[at : at + stride] for at in range(0, len(deep), stride))
    return {
        "PNG": saved(upright, "PNG"),
        "JPEG": saved(upright, "JPEG", quality=95, subsampling=0),
        "WebP": saved(upright, "WEBP", lossless=True),
        "EXIF 3": saved(upright.transpose(pil.Transpose.ROTATE_180), "PNG", exif=exif(3)),
        "EXIF 6": saved(upright.transpose(pil.Transpose.ROTATE_90), "PNG", exif=exif(6)),
        "EXIF 8": saved(upright.transpose(pil.Transpose.ROTATE_270), "WEBP", lossless=True, exif=exif(8)),
        "RGBA": saved(rgba, "PNG"),
        "palette": saved(upright.quantize(256, method=pil.Quantize.FASTOCTREE), "PNG"),
        "16-bit": png(*upright.size, 16, 2, deep_rows),
        "CMYK": saved(upright.convert("CMYK"), "JPEG", quality=95, subsampling=0),
    }


# What a format loses by itself on this picture: mean and largest difference.
LOSSES = {"JPEG": (1.5, 12), "CMYK": (1.5, 16), "palette": (12.0, 60)}


@pytest.mark.parametrize("size", [(320, 224), (900, 700)], ids=["within the budget", "resized"])
def test_the_same_picture_in_ten_encodings_sends_the_same_pixels(size: tuple[int, int]) -> None:
    upright = photo(*size)
    made = encodings(upright)
    assert len(made) == 10
    sent = {name: pixels(load(data, name)) for name, data in made.items()}
    for name, picture in sent.items():
        mean, largest = difference(picture, sent["PNG"])
        if name in LOSSES:
            assert (mean, largest) <= LOSSES[name], name
            assert largest <= LOSSES[name][1], name
        else:
            assert (mean, largest) == (0.0, 0), name


def test_a_palette_picture_equals_its_true_colour_twin() -> None:
    palette = photo(320, 224).quantize(64)
    assert load(saved(palette, "PNG")) == load(saved(palette.convert("RGB"), "PNG"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = photo(256, 96)
    stored = {
        1: upright,
        2: upright.transpose(pil.Transpose.FLIP_LEFT_RIGHT),
        3: upright.transpose(pil.Transpose.ROTATE_180),
        4: upright.transpose(pil.Transpose.FLIP_TOP_BOTTOM),
        5: upright.transpose(pil.Transpose.TRANSPOSE),
        6: upright.transpose(pil.Transpose.ROTATE_90),
        7: upright.transpose(pil.Transpose.TRANSVERSE),
        8: upright.transpose(pil.Transpose.ROTATE_270),
    }[orientation]
    assert load(saved(stored, "PNG", exif=exif(orientation))) == load(saved(upright, "PNG"))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_orientation_that_does_not_exist_is_ignored(orientation: int) -> None:
    picture = photo(64, 128)
    assert load(saved(picture, "PNG", exif=exif(orientation))) == load(saved(picture, "PNG"))


def test_a_broken_exif_block_is_no_reason_to_refuse() -> None:
    picture = photo(96, 128)
    for block in (b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"junk"):
        assert load(saved(picture, "JPEG", exif=block)) == load(saved(picture, "JPEG"))


# ------------------------------------------------------------------------------------------------------- C01


@pytest.mark.parametrize(
    "name",
    ["C01_exif3.jpg", "C01_exif6.jpg", "C01_exif8.jpg", "C01_badrational6.jpg", "C01_doubleheader6.jpg"],
)
def test_c01_turned_photos_are_sent_upright(name: str) -> None:
    plain = case("C01_plain.png")
    turned = case(name)
    assert (turned.width, turned.height) == (plain.width, plain.height)
    assert difference(pixels(turned), pixels(plain))[0] < 2.0


# ----------------------------------------------------------------------------------------- C04: transparency


@pytest.mark.parametrize(
    "name", ["C04_rgba.png", "C04_la.png", "C04_palette.png", "C04_noise_under_alpha.png"]
)
def test_c04_what_is_transparent_is_white(name: str) -> None:
    # The palette and the noise file draw the letters' soft edges a little differently.
    assert difference(pixels(case(name)), pixels(case("C04_plain.png")))[0] < 0.6


def test_a_transparent_picture_equals_its_flat_twin_also_when_resized() -> None:
    colour = photo(900, 700)
    alpha = photo(900, 700, seed=8).convert("L")
    flat = pil.new("RGB", colour.size, "white")
    flat.paste(colour, mask=alpha)
    colour.putalpha(alpha)
    assert load(saved(colour, "PNG")) == load(saved(flat, "PNG"))


@pytest.mark.parametrize(
    ("depth", "colour", "clear", "value"),
    [
        (8, 0, b"\0\x28", b"\x28"),
        (16, 0, b"\x28\x07", b"\x28\x07"),
        (8, 2, b"\0\x28\0\x29\0\x30", b"\x28\x29\x30"),
        (16, 2, b"\x28\x01\x29\x02\x30\x03", b"\x28\x01\x29\x02\x30\x03"),
    ],
    ids=["grey", "16-bit grey", "RGB", "16-bit RGB"],
)
def test_a_transparent_colour_is_white(depth: int, colour: int, clear: bytes, value: bytes) -> None:
    other = b"\x50" * len(value)
    rows = (b"\0" + value * 64 + other * 64) * 96
    sent = pixels(load(png(128, 96, depth, colour, rows, (b"tRNS", clear))))
    assert sent.crop((0, 0, 64, 96)).getcolors() == [(64 * 96, (255, 255, 255))]
    assert sent.crop((64, 0, 128, 96)).getcolors() == [(64 * 96, (0x50,) * 3)]


def test_only_the_exact_16_bit_grey_is_transparent() -> None:
    rows = (b"\0" + b"\x28\x07" * 64 + b"\x28\x08" * 64) * 96
    sent = pixels(load(png(128, 96, 16, 0, rows, (b"tRNS", b"\x28\x07"))))
    assert sent.getcolors() == [(64 * 96, (255, 255, 255)), (64 * 96, (0x28,) * 3)]


# ------------------------------------------------------------------------------------------- modes, colour


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_png_is_read(mode: str) -> None:
    picture = photo(256, 96).convert(mode)
    expected = picture.convert("RGBA").convert("RGB")
    assert difference(pixels(load(saved(picture, "PNG"))), expected) == (0.0, 0)


def test_16_bit_grey_keeps_its_tones() -> None:
    rows = b"".join(
        b"\0" + b"".join(struct.pack(">H", (x * 251) % 65536) for x in range(256)) for _ in range(96)
    )
    sent = pixels(load(png(256, 96, 16, 0, rows)))
    assert [sent.getpixel((x, 5)) for x in range(256)] == [((x * 251) % 65536 >> 8,) * 3 for x in range(256)]


def test_a_grey_jpeg_is_read() -> None:
    grey = photo(256, 96).convert("L")
    assert difference(pixels(load(saved(grey, "JPEG", quality=95))), grey.convert("RGB"))[0] < 1.5


def swapped_profile() -> bytes:
    """A profile that is no sRGB: a linear grey one would do, but RGB is the common case."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


def wide_profile() -> bytes:
    """An RGB profile whose red and blue primaries are exchanged, made from sRGB's by its tag table."""
    raw = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    at = {bytes(raw[i : i + 4]): i for i in range(132, 132 + 12 * struct.unpack(">I", raw[128:132])[0], 12)}
    red, blue = at[b"rXYZ"], at[b"bXYZ"]
    raw[red : red + 4], raw[blue : blue + 4] = raw[blue : blue + 4], raw[red : red + 4]
    described = raw.find("sRGB".encode("utf-16-be"))
    raw[described : described + 8] = "test".encode("utf-16-be")
    return bytes(raw)


def test_a_colour_profile_is_respected() -> None:
    red = pil.new("RGB", (128, 128), (255, 0, 0))
    sent = pixels(load(saved(red, "PNG", icc_profile=wide_profile())))
    assert sent.getpixel((5, 5)) == (0, 0, 255)


def test_an_srgb_profile_changes_nothing() -> None:
    picture = photo(256, 160)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for format in ("PNG", "WEBP"):
        options = {"lossless": True} if format == "WEBP" else {}
        assert load(saved(picture, format, icc_profile=profile, **options)) == load(saved(picture, "PNG"))


@pytest.mark.parametrize("profile", [b"junk", b"\0" * 200, swapped_profile()])
def test_a_broken_or_foreign_profile_is_ignored(profile: bytes) -> None:
    picture = photo(256, 160)
    assert load(saved(picture, "PNG", icc_profile=profile)) == load(saved(picture, "PNG"))


# --------------------------------------------------------------------- C05 and C07: what the bytes really are


def test_c05_still_webp_equals_the_png() -> None:
    still = load(saved(photo(640, 400), "WEBP", lossless=True))
    assert still == load(saved(photo(640, 400), "PNG"))
    assert difference(pixels(case("C05_still.webp")), pixels(case("C05_plain.png")))[0] < 3.0


def test_c05_of_an_animation_the_first_frame_is_used_with_a_notice() -> None:
    moving = case("C05_moving.webp")
    assert moving.notices == ("C05_moving.webp: an animation of 2 frames; the first one is used",)
    assert difference(pixels(moving), pixels(case("C05_plain.png")))[0] < 3.0


def test_of_an_animated_png_the_first_frame_is_used_with_a_notice() -> None:
    first, second = photo(256, 160), photo(256, 160, seed=9)
    moving = load(saved(first, "PNG", save_all=True, append_images=[second]), "a.png")
    assert moving.notices == ("a.png: an animation of 2 frames; the first one is used",)
    assert moving == load(saved(first, "PNG"))


def test_c05_gif_is_refused_by_name() -> None:
    assert refusal((CASES / "C05_moving.gif").read_bytes()) == "x: a GIF image, which is not supported"


def test_c07_content_decides_not_the_name() -> None:
    plain = case("C01_plain.png")
    assert case("C07_png_inside.jpg") == plain
    assert difference(pixels(case("C07_jpeg_inside.png")), pixels(plain))[0] < 2.0


def test_c07_of_an_mpo_the_first_picture_is_used_with_a_notice() -> None:
    mpo = case("C07_mpo_inside.jpg")
    assert mpo.notices == ("C07_mpo_inside.jpg: a file of several images (MPO); the first one is used",)
    assert difference(pixels(mpo), pixels(case("C01_plain.png")))[0] < 2.0


def test_an_hdr_photo_is_one_picture() -> None:
    """Phones store its gain map as a second picture of an MPO."""
    mpo = (CASES / "C07_mpo_inside.jpg").read_bytes()
    block = b'http://ns.adobe.com/xap/1.0/\0<x hdrgm:Version="1.0"/>'
    data = mpo[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + mpo[2:]
    assert load(data).notices == ()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ((CASES / "C07_heic_inside.jpg").read_bytes(), "a HEIC image, which is not supported"),
        ((CASES / "C07_html_inside.jpg").read_bytes(), "an HTML page, not an image"),
        (b"", "the file is empty"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1", "an AVIF image, which is not supported"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0heic", "a HEIF image, which is not supported"),
        (b"\0\0\0\x18ftypisom\0\0\0\0mp42", "a video, not an image"),
        (b"BM" + struct.pack("<IHHI", 99, 0, 0, 54) + bytes(16), "a BMP image, which is not supported"),
        (b"II*\0\x08\0\0\0", "a TIFF image, which is not supported"),
        (b"\xff\x0a\x00\x01", "a JPEG XL image, which is not supported"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 image, which is not supported"),
        (b"<?xml version='1.0'?><svg/>", "an SVG or XML text, not an image"),
        (b"%PDF-1.7\n", "a PDF, not an image"),
        (b"PK\x03\x04....", "a ZIP archive, not an image"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "unknown data, not an image"),
        ("Grüße".encode(), "text, not an image"),
        (b"\x80\x81\x82", "unknown data, not an image"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_by_what_it_is(data: bytes, what: str) -> None:
    assert refusal(data, "photo.jpg") == f"photo.jpg: {what}"


def test_kind_needs_no_more_than_the_first_bytes() -> None:
    assert images.kind(saved(photo(64, 64), "PNG")[:16]) == "PNG"
    assert images.kind(saved(photo(64, 64), "WEBP")[:16]) == "WebP"
    assert images.kind(b'{"a": 1}') is None
    assert images.kind(b"BM is a text that starts like a bitmap") is None
    assert images.kind(b"") is None


def test_is_named_so() -> None:
    assert [images.is_named_so(name) for name in ("a.PNG", "a.b.jpeg", "a.heic", "png", "a.json")] == [
        True,
        True,
        True,
        False,
        False,
    ]


# ---------------------------------------------------------------------------------------- damage and limits


@pytest.mark.parametrize("format", ["PNG", "JPEG", "progressive", "WEBP", "lossless WEBP"])
def test_a_file_cut_anywhere_is_refused_or_read_whole(format: str) -> None:
    picture = photo(256, 160)
    options = {"progressive": True} if format == "progressive" else {}
    if format == "lossless WEBP":
        options = {"lossless": True}
    data = saved(picture, {"progressive": "JPEG"}.get(format, format.split()[-1]), **options)
    whole = load(data)
    step = max(1, len(data) // 150)
    cuts = [*range(3, len(data) - 40, step), *range(len(data) - 40, len(data))]
    read = 0
    for cut in cuts:
        try:
            assert load(data[:cut]) == whole, cut
            read += 1
        except errors.InputError as exc:
            assert exc.message.startswith("x: "), cut  # noqa: PT017 - it may also be read
    assert read <= 24  # only what stands behind the last pixel may be missing


def test_a_cut_file_is_said_to_be_cut() -> None:
    data = saved(photo(256, 160), "JPEG")
    assert refusal(data[: len(data) // 2], "a.jpg") == "a.jpg: the JPEG image is cut off: its end is missing"


@pytest.mark.parametrize("length", [0, 1, 12, 99999, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("kind", [b"IHDR", b"IDAT", b"tEXt"])
def test_a_png_with_a_wrong_chunk_length_is_refused(kind: bytes, length: int) -> None:
    rows = (b"\0" + b"\x50\x60\x70" * 128) * 96
    data = png(128, 96, 8, 2, rows, (b"tEXt", b"Comment\0hello"))
    load(data)
    at = data.index(kind) - 4
    assert "PNG image" in refusal(data[:at] + struct.pack(">I", length) + data[at + 4 :])


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_random_damage_is_read_or_refused_but_never_a_crash(format: str) -> None:
    source = random.Random(3)
    data = saved(photo(128, 96), format)
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(source.randrange(1, 6)):
            broken[source.randrange(len(broken))] = source.randrange(256)
        try:
            load(bytes(broken))
        except errors.InputError as exc:
            assert "\n" not in exc.message  # noqa: PT017 - it may also be read


def test_twenty_million_pixels_are_the_limit() -> None:
    rows = bytes(1 + 500)
    assert refusal(png(4001, 5000, 1, 0, rows * 5000)) == (
        "x: 4001 x 5000 pixels, 20 million; an image may have 20 million pixels"
    )
    assert load(png(4000, 5000, 1, 0, rows * 5000)).n_tokens <= 512


def test_a_file_of_too_many_bytes_is_refused_before_it_is_opened() -> None:
    data = b"\x89PNG\r\n\x1a\n" + bytes(images.MAX_BYTES)
    assert refusal(data) == "x: 161 million bytes; an image file may have 161"


def test_a_jpeg_of_a_thousand_scans_is_refused() -> None:
    data = saved(photo(64, 64), "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    assert "more than 100 scans" in refusal(data[:at] + data[at:-2] * 100 + data[-2:])


def test_too_many_images() -> None:
    images.refuse_too_many(8)
    with pytest.raises(errors.InputError, match="9 images: a request may hold 8"):
        images.refuse_too_many(9)


def in_a_fresh_process(body: str) -> dict[str, float]:
    """Run code that may print one number a name; add its time and its peak memory in MB."""
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from openjev_cli import errors, images
        def peak_mb():
            # On Linux ru_maxrss begins with what the parent had.
            if sys.platform != "linux":
                return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) / 1024
    """) + textwrap.dedent(body)
    began_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, check=True)
    assert done.stderr == b""
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    return {name: float(value) for name, value in lines} | {"seconds": time.perf_counter() - began_s}


@pytest.mark.parametrize(
    ("name", "size"), [("C09_900mp.png", "30000 x 30000"), ("C09_98mp.png", "14000 x 7000")]
)
def test_c09_bombs_are_refused_at_once_and_in_little_memory(name: str, size: str) -> None:
    seen = in_a_fresh_process(f"""
        data = Path({str(CASES / name)!r}).read_bytes()
        try:
            images.from_bytes(data, name="x")
        except errors.InputError as exc:
            print("refused", int({size!r} in exc.message))
        print("peak_mb", peak_mb())
    """)
    assert seen["refused"] == 1
    assert seen["peak_mb"] < 150
    assert seen["seconds"] < 2


def test_bombs_in_metadata_are_refused_or_left_packed() -> None:
    packed = zlib.compress(bytes(80_000_000))
    rows = (b"\0" + b"\x50\x60\x70" * 128) * 96
    chunks = {b"zTXt": b"k\0\0", b"iCCP": b"p\0\0", b"iTXt": b"k\0\x01\0\0\0"}
    for kind, head in chunks.items():
        began_s = time.perf_counter()
        try:
            load(png(128, 96, 8, 2, rows, (kind, head + packed)))
        except errors.InputError as exc:
            assert "PNG image" in exc.message  # noqa: PT017 - it may also be read
        assert time.perf_counter() - began_s < 2


@pytest.mark.parametrize("size", [(16_383, 16_383), (4_001, 5_000)])
def test_a_large_webp_canvas_is_refused_before_it_is_drawn(size: tuple[int, int]) -> None:
    small = saved(photo(64, 64), "WEBP", lossless=True)
    canvas = struct.pack("<I", size[0] - 1)[:3] + struct.pack("<I", size[1] - 1)[:3]
    frame = bytes(6) + struct.pack("<I", 63)[:3] + struct.pack("<I", 63)[:3] + bytes(4) + small[12:]
    chunks = [
        (b"VP8X", b"\x02\0\0\0" + canvas),
        (b"ANIM", b"\0" * 6),
        (b"ANMF", frame),
    ]
    body = b"WEBP" + b"".join(
        name + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2) for name, part in chunks
    )
    data = b"RIFF" + struct.pack("<I", len(body)) + body
    assert "20 million pixels" in refusal(data)


def test_a_large_jpeg_is_decoded_at_reduced_scale(tmp_path: Path) -> None:
    """A twenty-megapixel photo would take 60 MB as pixels; its quarter takes 4."""
    data = saved(photo(5000, 4000), "JPEG", quality=80)
    (tmp_path / "photo.jpg").write_bytes(data)
    seen = in_a_fresh_process(f"""
        import PIL.JpegImagePlugin
        data = Path({str(tmp_path / "photo.jpg")!r}).read_bytes()
        before = peak_mb()
        image = images.from_bytes(data, name="x")
        print("grown_mb", peak_mb() - before)
        print("tokens", image.n_tokens)
    """)
    assert seen["tokens"] == 25 * 20
    assert seen["grown_mb"] < 30
    mean, _ = difference(pixels(load(data)), photo(800, 640))
    assert mean < 3.0


# ------------------------------------------------------------------------------------------------ data URLs


NOT_A_DATA_URL = "u: not a data URL (no URL is fetched, no file is read)"


def test_a_data_url_is_the_file() -> None:
    data = saved(photo(256, 160), "PNG")
    for head in ("data:image/png;base64,", "DATA:image/jpeg;name=x;Base64,", "data:;base64,"):
        assert images.from_data_url(head + base64.b64encode(data).decode(), name="u") == load(data)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/a.png", NOT_A_DATA_URL),
        ("file:///etc/passwd", NOT_A_DATA_URL),
        ("", NOT_A_DATA_URL),
        ("data:image/png,abc", "u: a data URL that is not in base64"),
        ("data:image/png;base64", "u: a data URL that is not in base64"),
        ("data:image/png;base64,ab$c", "u: its base64 is broken"),
        ("data:image/png;base64,abc", "u: its base64 is broken"),
        ("data:image/png;base64,é", "u: its base64 is broken"),
        ("data:image/png;base64,", "u: the file is empty"),
        ("data:image/png;base64,aGVsbG8=", "u: text, not an image"),
    ],
)  # fmt: skip
def test_a_data_url_that_holds_no_picture_is_refused(url: str, message: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        images.from_data_url(url, name="u")
    assert caught.value.message == message


def test_the_base64_is_the_bmp_file() -> None:
    image = load(saved(photo(256, 160), "PNG"))
    assert base64.b64decode(image.base64) == image.data
    assert (image.data[:2], len(image.data)) == (b"BM", 54 + 3 * 256 * 160)


def test_importing_images_does_not_load_pillow() -> None:
    assert (
        in_a_fresh_process("print('loaded', int(any(name.startswith('PIL') for name in sys.modules)))")[
            "loaded"
        ]
        == 0
    )
