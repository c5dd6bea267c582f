"""Pictures: opened, checked, turned upright, put on white, and brought to the encoder's grid in one step.

What comes out is what the engine's vision encoder sees: RGB pixels whose sides are multiples of `CELL_PX`, so
that llama.cpp copies them and resizes nothing. They travel as BMP, which its decoder (stb_image) reads
losslessly and which costs nothing to write; equal pixels are equal bytes: a picture is known by its pixels.

It takes bytes: files, stdin and requests are read elsewhere. Pillow is imported inside functions.
"""

from __future__ import annotations

import binascii
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openjev_cli import errors

if TYPE_CHECKING:
    from PIL import Image as pil
    from PIL import ImageFile

MAX_IMAGES = 8
MAX_PIXELS = 20_000_000
# The largest honest file of that many pixels: 16-bit RGBA, not compressed.
MAX_BYTES = 8 * MAX_PIXELS + 1_000_000
# A progressive JPEG needs about ten scans. Each goes over the whole picture again, whatever it weighs.
MAX_SCANS = 100

# The qwen3vl encoder: patches of 16 px merged 2 x 2 make one token. Its limits for a picture, in tokens, are
# those of llama.cpp b11434 (tools/mtmd/clip.cpp, PROJECTOR_TYPE_QWEN3VL: set_limit_image_tokens).
CELL_PX = 32
ENCODER_MIN_TOKENS = 8
ENCODER_MAX_TOKENS = 4096
DEFAULT_TOKENS = 512
# Under 16 the encoder's rounding down could end below its own minimum, and it would resize again.
MIN_BUDGET = 16

SUPPORTED = ("PNG", "JPEG", "WebP")
_ADVICE = "Save it as PNG, JPEG or WebP."
_SUFFIXES = (
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".webp", ".gif", ".bmp", ".tif", ".tiff",
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".ico", ".psd",
)  # fmt: skip
# What the first bytes are. RIFF and ISO media files say their kind a few bytes later: see `kind`.
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS\x00", "Photoshop"),
    (b"\x00\x00\x01\x00", "icon"),
    (b"v/1\x01", "OpenEXR"),
    (b"qoif", "QOI"),
)
_BRANDS = {
    b"heic": "HEIC", b"heix": "HEIC", b"heim": "HEIC", b"heis": "HEIC", b"hevc": "HEIC", b"hevx": "HEIC",
    b"mif1": "HEIF", b"msf1": "HEIF", b"mif2": "HEIF", b"avif": "AVIF", b"avis": "AVIF",
}  # fmt: skip
# Of Pillow's names: what to do with a picture whose EXIF orientation is 2 to 8.
_UPRIGHT = (
    "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90",
)  # fmt: skip
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True)
class Image:
    """A picture as the engine gets it. width, height: pixels, multiples of `CELL_PX`. data: a BMP file.
    notices: lines for stderr."""

    width: int
    height: int
    data: bytes = field(repr=False)
    notices: tuple[str, ...] = field(default=(), compare=False)

    @property
    def n_tokens(self) -> int:
        """Tokens the encoder makes of it, without the two that frame a picture."""
        return (self.width // CELL_PX) * (self.height // CELL_PX)

    @property
    def digest(self) -> str:
        """A hash of size and pixels: what the image is known by wherever answers or prefixes are kept."""
        from hashlib import blake2b

        return blake2b(self.data, digest_size=32).hexdigest()

    @property
    def base64(self) -> str:
        """The file in base64, as the engine takes it."""
        return binascii.b2a_base64(self.data, newline=False).decode("ascii")


# ------------------------------------------------------------------------------------------ what bytes are


def kind(data: bytes) -> str | None:
    """Return the name of the picture format of a file's first bytes, supported or not, or None if they are of
    no picture. Names and suffixes play no part."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        brands = [data[8:12], *(data[at : at + 4] for at in range(16, 48, 4))]
        return next((_BRANDS[brand] for brand in brands if brand in _BRANDS), None)
    if data[:2] == b"BM" and data[6:10] == b"\0\0\0\0" and len(data) > 26:
        return "BMP"
    return next((name for start, name in _SIGNATURES if data.startswith(start)), None)


def is_named_so(name: str) -> bool:
    """Whether a file name ends like a picture's."""
    return name.lower().endswith(_SUFFIXES)


def refuse_too_many(count: int) -> None:
    """Raise InputError if a request holds more pictures than it may."""
    if count > MAX_IMAGES:
        raise errors.InputError(
            f"{count} images: a request may hold {MAX_IMAGES}",
            next_step=f"Leave out {count - MAX_IMAGES}, or ask about them in several requests.",
        )


def budget(tokens: int, *, name: str = "--image-tokens") -> int:
    """Return a token budget for one picture if it is one. Raises InputError naming the allowed range."""
    if not MIN_BUDGET <= tokens <= ENCODER_MAX_TOKENS:
        raise errors.InputError(
            f"{name} {tokens}: not between {MIN_BUDGET} and {ENCODER_MAX_TOKENS}",
            next_step=f"Leave it out for {DEFAULT_TOKENS}, or give a number in that range.",
        )
    return tokens


# -------------------------------------------------------------------------------------------------- sizes


def encoder_size(width: int, height: int, max_tokens: int) -> tuple[int, int]:
    """Return the size in pixels that llama.cpp's encoder would bring a picture to.

    The same single-precision arithmetic as `calc_size_preserved_ratio` (tools/mtmd/mtmd-image.cpp, b11434). A
    picture much longer than wide can come out above `max_tokens` or below the minimum, there and here.
    """
    min_pixels = ENCODER_MIN_TOKENS * CELL_PX**2
    max_pixels = max_tokens * CELL_PX**2
    # C rounds halves away from zero.
    cells = [max(1, math.floor(side / CELL_PX + 0.5)) for side in (width, height)]
    area = _single(_single(height) * _single(width))
    pixels = cells[0] * cells[1] * CELL_PX**2
    if pixels > max_pixels:
        beta = _single(math.sqrt(_single(area / max_pixels)))
        cells = [max(1, math.floor(_single(_single(side / beta) / CELL_PX))) for side in (width, height)]
    elif pixels < min_pixels:
        beta = _single(math.sqrt(_single(min_pixels / area)))
        cells = [math.ceil(_single(_single(side * beta) / CELL_PX)) for side in (width, height)]
    return cells[0] * CELL_PX, cells[1] * CELL_PX


def sent_size(width: int, height: int, max_tokens: int) -> tuple[tuple[int, int], bool]:
    """Return the size a picture is sent at, in pixels, and whether its own pixels are resized for that.

    A picture within the budget keeps its pixels and is filled up to the grid; otherwise it gets the encoder's
    own size. Either way the tokens are within the encoder's limits and the budget, so it resizes nothing.
    """
    filled = [math.ceil(side / CELL_PX) for side in (width, height)]
    if ENCODER_MIN_TOKENS <= filled[0] * filled[1] <= max_tokens:
        return (filled[0] * CELL_PX, filled[1] * CELL_PX), False
    cells = [side // CELL_PX for side in encoder_size(width, height, max_tokens)]
    if cells[0] * cells[1] > max_tokens:
        # So narrow that one cell across is too wide already; the long side has to give.
        long = 0 if cells[0] > cells[1] else 1
        cells[long] = max_tokens // cells[1 - long]
    return (cells[0] * CELL_PX, cells[1] * CELL_PX), True


def _single(value: float) -> float:
    """Round to single precision. Rounding a double's sum, product, quotient or root is exact that way."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


# ------------------------------------------------------------------------------------------------ reading


def from_bytes(data: bytes, *, name: str, max_tokens: int = DEFAULT_TOKENS) -> Image:
    """Return the picture a file's bytes hold, as the engine gets it.

    name: how messages call it. max_tokens: what it may cost (see `budget`). Raises InputError for anything
    that is not a whole PNG, JPEG or WebP within the limits; sizes are checked before any pixel is decoded.
    """
    import warnings

    found = _refuse_unsupported(data, name)
    from PIL import Image as pil

    # Pillow's remarks about odd metadata are no use to the user. Not `catch_warnings`: threads would undo each
    # other's filters.
    warnings.filterwarnings("ignore", module=r"PIL\b")
    try:
        opened = _open(data, found)
        _refuse_large(opened.size, name)
        notices = _notices(opened, found, name)
        picture = _prepare(opened, is_deep=found == "PNG" and data[24] == 16, max_tokens=max_tokens)
    except errors.OpenjevError:
        raise
    except pil.DecompressionBombError as exc:
        raise _too_large(name, "more than allowed") from exc
    except Exception as exc:  # Pillow raises a dozen classes for broken files
        raise _broken(name, found, exc) from exc
    return Image(picture.width, picture.height, _bmp(picture), notices)


def from_data_url(url: str, *, name: str, max_tokens: int = DEFAULT_TOKENS) -> Image:
    """Return the picture of a base64 data URL. Raises InputError like `from_bytes`, not repeating the URL."""
    head, comma, body = url.partition(",")
    if head[:5].lower() != "data:":
        raise errors.InputError(
            f"{name}: not a data URL (no URL is fetched, no file is read)",
            next_step="Send the picture itself: data:image/png;base64,...",
        )
    if not comma or not head.lower().endswith(";base64"):
        raise errors.InputError(
            f"{name}: a data URL that is not in base64", next_step="Write it as data:image/png;base64,..."
        )
    if len(body) > MAX_BYTES * 4 // 3 + 4:
        raise _too_long(name, len(body) * 3 // 4)
    try:
        data = binascii.a2b_base64(body, strict_mode=True)
    except ValueError as exc:  # binascii.Error, and characters beyond ASCII
        raise errors.InputError(
            f"{name}: its base64 is broken", next_step="Encode the file again, with padding and no line ends."
        ) from exc
    return from_bytes(data, name=name, max_tokens=max_tokens)


def _refuse_unsupported(data: bytes, name: str) -> str:
    """Return the format of the bytes. Raises InputError, saying what they are, unless it is supported."""
    if not data:
        raise errors.InputError(f"{name}: the file is empty", next_step="Check how it was made or copied.")
    if len(data) > MAX_BYTES:
        raise _too_long(name, len(data))
    found = kind(data)
    if found not in SUPPORTED:
        article = "an" if found and found[0] in "AO" else "a"
        what = (
            f"{article} {found} image, which is not supported" if found else f"{_other(data)}, not an image"
        )
        raise errors.InputError(f"{name}: {what}", next_step=_ADVICE)
    if found == "JPEG" and data.count(b"\xff\xda") > MAX_SCANS:
        raise errors.InputError(
            f"{name}: a JPEG of more than {MAX_SCANS} scans, which no camera or program writes",
            next_step=_ADVICE,
        )
    return found


def _other(data: bytes) -> str:
    """Return what bytes that are no picture seem to be, with the article."""
    start = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if start.startswith((b"<svg", b"<?xml")):
        return "an SVG or XML text"
    if start.startswith(b"%pdf"):
        return "a PDF"
    if data[:4] == b"PK\x03\x04":
        return "a ZIP archive"
    if data[4:8] == b"ftyp":
        return "a video"
    try:
        data[:1024].decode("utf-8")
    except UnicodeDecodeError as exc:
        # A character may be cut at the end of what was looked at.
        if exc.start < 1020:
            return "unknown data"
    return "unknown data" if b"\0" in data[:1024] else "text"


def _refuse_large(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise _too_large(name, f"{width} x {height} pixels, {width * height / 1e6:.0f} million")


def _too_large(name: str, what: str) -> errors.InputError:
    return errors.InputError(
        f"{name}: {what}; an image may have {MAX_PIXELS // 1_000_000} million pixels",
        next_step="Make it smaller, or cut out the part that matters.",
    )


def _too_long(name: str, n_bytes: int) -> errors.InputError:
    return errors.InputError(
        f"{name}: {n_bytes / 1e6:.0f} million bytes; an image file may have {MAX_BYTES / 1e6:.0f}",
        next_step="Make it smaller, or cut out the part that matters.",
    )


def _broken(name: str, found: str, exc: Exception) -> errors.InputError:
    # Pillow's own words name its internals, and can repeat bytes of the file.
    is_cut = isinstance(exc, EOFError) or "truncated" in str(exc).lower()
    what = "is cut off: its end is missing" if is_cut else "is damaged and cannot be decoded"
    return errors.InputError(
        f"{name}: the {found} image {what}", next_step="Copy or download it again, or save it anew."
    )


# ------------------------------------------------------------------------------------------------- pixels


def _open(data: bytes, found: str) -> ImageFile.ImageFile:
    """Read the header. The plugin is called directly: `Image.open` would load all forty for a WebP."""
    import io

    if found == "PNG":
        from PIL import PngImagePlugin

        _check_png(data)
        return PngImagePlugin.PngImageFile(io.BytesIO(data))
    if found == "JPEG":
        from PIL import JpegImagePlugin

        return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    from PIL import WebPImagePlugin

    return WebPImagePlugin.WebPImageFile(io.BytesIO(data))


def _check_png(data: bytes) -> None:
    """Raise EOFError or ValueError unless a PNG's chunks are whole up to its end. Pillow stops reading at the
    last pixel, and does not compare the checksums of the pixels."""
    at = 8
    while data[at + 4 : at + 8] != b"IEND":
        if at + 12 > len(data):
            raise EOFError
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            raise EOFError
        if binascii.crc32(memoryview(data)[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise ValueError
        at = end + 4


def _notices(opened: ImageFile.ImageFile, found: str, name: str) -> tuple[str, ...]:
    n_frames = int(getattr(opened, "n_frames", 1))
    if n_frames > 1:
        return (f"{name}: an animation of {n_frames} frames; the first one is used",)
    # A phone's HDR photo is stored like a stereo pair, but its second picture only brightens the first.
    if found == "JPEG" and "mp" in opened.info:
        segments: Sequence[tuple[str, bytes]] = getattr(opened, "applist", ())
        if not any(b"hdrgm:Version" in content for _, content in segments):
            return (f"{name}: a file of several images (MPO); the first one is used",)
    return ()


def _prepare(opened: ImageFile.ImageFile, *, is_deep: bool, max_tokens: int) -> pil.Image:
    """Return the picture upright, on white, in sRGB, at the size it is sent. is_deep: 16 bits a channel."""
    turn = _orientation(opened)
    upright = opened.size if turn < 5 else (opened.height, opened.width)
    size, is_resized = sent_size(*upright, max_tokens)
    if is_resized and opened.format == "JPEG":
        # libjpeg leaves out the frequencies that the resize would only throw away.
        opened.draft(None, size if turn < 5 else (size[1], size[0]))
    profile = opened.info.get("icc_profile")
    picture = _on_white(opened, is_deep=is_deep)
    if turn > 1:
        from PIL import Image as pil

        picture = picture.transpose(pil.Transpose[_UPRIGHT[turn - 2]])
    if is_resized:
        from PIL import Image as pil

        # The filter that Qwen's own preprocessing and llama.cpp use.
        picture = picture.resize(size, pil.Resampling.BICUBIC)
    # After the resize: a colour profile is costly and then meets a twentieth of the pixels.
    picture = _to_srgb(picture, profile)
    return picture if picture.size == size else _fill_up(picture, size)


def _orientation(opened: ImageFile.ImageFile) -> int:
    """Return the EXIF orientation, 1 to 8; 1 where there is none or it makes no sense."""
    try:
        turn = opened.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken metadata block is no reason to refuse the picture
        return 1
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else 1


def _on_white(opened: pil.Image, *, is_deep: bool) -> pil.Image:
    """Return the decoded picture as L, RGB or CMYK, what is transparent composited on white."""
    from PIL import Image as pil

    opened.load()
    if opened.mode.startswith("I"):
        picture = _grey_of_16_bits(opened)
    elif opened.mode in ("L", "RGB", "1") and "transparency" in opened.info:
        if is_deep:  # the colour is given in 16 bits, the pixels have been read to 8
            opened.info["transparency"] = tuple(value >> 8 for value in opened.info["transparency"])
        picture = opened.convert("RGBA")
    elif opened.mode in ("P", "PA"):
        picture = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
    elif opened.mode == "1":
        picture = opened.convert("L")
    else:
        picture = opened
    if picture.mode not in ("LA", "RGBA"):
        return picture if picture.mode in ("L", "RGB", "CMYK") else picture.convert("RGB")
    base = picture.mode[:-1]
    white = pil.new(base, picture.size, (255,) * len(base))
    white.paste(picture.convert(base), mask=picture.getchannel("A"))
    return white


def _grey_of_16_bits(opened: pil.Image) -> pil.Image:
    """Return 16-bit grey as L, or LA where one value is transparent. Pillow's own conversion clips at 255."""
    from PIL import Image as pil
    from PIL import ImageChops

    raw = opened.tobytes("raw", "I;16B")
    grey = pil.frombytes("L", opened.size, raw[0::2])
    clear = opened.info.get("transparency")
    if isinstance(clear, int):
        low = pil.frombytes("L", opened.size, raw[1::2])
        differs = [
            part.point([255 * (value != wanted) for value in range(256)])
            for part, wanted in ((grey, clear >> 8), (low, clear & 255))
        ]
        grey.putalpha(ImageChops.lighter(*differs))
    return grey


def _to_srgb(picture: pil.Image, profile: object) -> pil.Image:
    """Return the picture as RGB, its colours brought from `profile` (ICC bytes, or None) to sRGB."""
    if isinstance(profile, bytes) and profile:
        try:
            import io

            from PIL import ImageCms

            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            if not ImageCms.getProfileDescription(source).startswith("sRGB"):
                target = ImageCms.createProfile("sRGB")
                converted = ImageCms.profileToProfile(picture, source, target, outputMode="RGB")
                picture = converted if converted is not None else picture
        except Exception:  # a broken profile, or one of another colour space: viewers ignore those too
            pass
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _bmp(picture: pil.Image) -> bytes:
    """Return RGB pixels as an uncompressed BMP: a header, then rows of BGR from the last to the first. Rows need
    no padding, as their width is a multiple of 4."""
    width, height = picture.size
    pixels = picture.tobytes("raw", "BGR", 0, -1)
    head = struct.pack("<2sIHHI", b"BM", 54 + len(pixels), 0, 0, 54)
    return head + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 0, 0, 0, 0) + pixels


def _fill_up(picture: pil.Image, size: tuple[int, int]) -> pil.Image:
    """Return the picture at the top left of `size`, its last column and row repeated to the edges: a bar of
    any one colour could be taken for a part of the picture."""
    from PIL import Image as pil

    width, height = picture.size
    canvas = pil.new("RGB", size)
    canvas.paste(picture)
    if size[0] > width:
        edge = picture.crop((width - 1, 0, width, height))
        canvas.paste(edge.resize((size[0] - width, height), pil.Resampling.NEAREST), (width, 0))
    if size[1] > height:
        edge = canvas.crop((0, height - 1, size[0], height))
        canvas.paste(edge.resize((size[0], size[1] - height), pil.Resampling.NEAREST), (0, height))
    return canvas
