"""Questions about images on the real engine: what is equal answers equally, what differs does not."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image as pil

from openjev_cli import config, decide, errors, images, questions, request, timing
from openjev_cli import state as states
from tests.conftest import CASES, Command

ASKED = questions.load(
    [
        questions.inline("Is the red band at the top?"),
        questions.inline("Which colour is it? [red | green | blue: like the sky]"),
        questions.inline("How large is it? [small < large < huge]"),
    ]
)
# Answers of two prompts whose pixels are equal agree to this.
SAME = 1e-5

Ask = Callable[..., tuple[tuple[float, ...], ...]]


@pytest.fixture(scope="module")
def session(
    llama_server: Path, tiny_hybrid: Path, tiny_projector: Path, runtime_dir: Path
) -> Iterator[decide.Session]:
    environment = {"XDG_RUNTIME_DIR": str(runtime_dir), "HOME": str(runtime_dir), "PATH": os.environ["PATH"]}
    flags = {"model": str(tiny_hybrid), "mmproj": str(tiny_projector), "llama_server": str(llama_server)}
    settings = config.load(flags, env=environment, cwd=Path("/"))
    with decide.Session(settings, environment) as opened:
        yield opened


@pytest.fixture
def ask(session: decide.Session) -> Ask:
    def asked(
        state: states.State, which: Sequence[questions.Question] = ASKED
    ) -> tuple[tuple[float, ...], ...]:
        stages = timing.Stages(began_at_s=time.perf_counter())
        decision = session.decide(request.Request(state, tuple(which)), stages)
        return tuple(tuple(p for _, p in sorted(answer.ranked)) for answer in decision.answers)

    return asked


def apart(one: tuple[tuple[float, ...], ...], other: tuple[tuple[float, ...], ...]) -> float:
    """Return the largest difference between two probabilities."""
    return max(abs(p - q) for a, b in zip(one, other, strict=True) for p, q in zip(a, b, strict=True))


def encoded(picture: pil.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def file_state(name: str) -> states.State:
    return states.from_path(CASES / name)


def test_twins_with_equal_pixels_get_the_same_answers(ask: Ask) -> None:
    upright = pil.open(CASES / "C01_plain.png").convert("RGB")
    orientation = pil.Exif()
    orientation[0x0112] = 6
    turned = upright.transpose(pil.Transpose.ROTATE_90)
    twins = [
        encoded(upright, "PNG"),
        encoded(upright, "WEBP", lossless=True),
        encoded(turned, "PNG", exif=orientation.tobytes()),
        encoded(upright.convert("RGBA"), "PNG"),
    ]
    answers = [ask(states.from_bytes(data, name="x")) for data in twins]
    for answer in answers[1:]:
        assert apart(answer, answers[0]) <= SAME


def test_a_sideways_picture_is_another_picture(ask: Ask) -> None:
    upright = pil.open(CASES / "C01_plain.png").convert("RGB")
    turned = upright.transpose(pil.Transpose.ROTATE_180)
    first, second = (ask(states.from_bytes(encoded(one, "PNG"), name="x")) for one in (upright, turned))
    assert apart(first, second) > 1e-3


def test_e04_a_swapped_picture_under_the_same_text_is_answered_on_its_own(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "sign.png"
    go = pil.open(CASES / "C05_plain.png").convert("RGB")
    stop = pil.eval(go, lambda value: 255 - value)
    corner = go.copy()
    corner.paste((1, 2, 3), (0, 0, 24, 24))
    seen: dict[int, list[tuple[tuple[float, ...], ...]]] = {0: [], 1: [], 2: []}
    for turn in range(10):
        which = turn % 3
        path.write_bytes(encoded((go, stop, corner)[which], "PNG"))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        seen[which].append(ask(states.from_path(path)))
    for answers in seen.values():
        for again in answers[1:]:
            assert apart(again, answers[0]) <= SAME
    assert apart(seen[0][0], seen[1][0]) > 1e-3
    assert apart(seen[0][0], seen[2][0]) > 1e-4


def test_together_alone_and_without_any_cache_the_answers_are_the_same(
    ask: Ask, session: decide.Session
) -> None:
    state = states.with_images(states.from_text("A sign."), [image_of("C05_plain.png")])
    together = ask(state)
    alone = tuple(answer for one in ASKED for answer in ask(state, [one]))
    assert apart(together, alone) <= SAME


def image_of(name: str) -> images.Image:
    return images.from_bytes((CASES / name).read_bytes(), name=name)


def test_text_order_and_number_of_images_matter(ask: Ask) -> None:
    one, other = image_of("C05_plain.png"), image_of("C04_plain.png")
    text = states.from_text("Two pictures.")
    answers = [
        ask(states.with_images(text, [one, other])),
        ask(states.with_images(text, [other, one])),
        ask(states.with_images(text, [one])),
        ask(states.with_images(None, [one])),
    ]
    for at, answer in enumerate(answers):
        for later in answers[at + 1 :]:
            assert apart(answer, later) > 1e-4


def test_images_of_a_chat_are_seen_where_they_stand(ask: Ask) -> None:
    def chat(*parts: object) -> states.State:
        return states.from_stdin(json.dumps([{"role": "user", "content": list(parts)}]).encode())

    def shown(name: str) -> dict[str, object]:
        url = "data:image/png;base64," + base64.b64encode((CASES / name).read_bytes()).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    def text(words: str) -> dict[str, object]:
        return {"type": "text", "text": words}

    before = ask(chat(shown("C05_plain.png"), text("Look.")))
    behind = ask(chat(text("Look."), shown("C05_plain.png")))
    other = ask(chat(shown("C04_plain.png"), text("Look.")))
    beside = ask(states.with_images(states.from_text("Look."), [image_of("C05_plain.png")]))
    assert apart(before, beside) <= SAME
    assert apart(before, behind) > 1e-4
    assert apart(before, other) > 1e-4


def test_usage_counts_the_images_tokens(session: decide.Session) -> None:
    def usage(state: states.State) -> tuple[int, int]:
        stages = timing.Stages(began_at_s=time.perf_counter())
        found = session.decide(request.Request(state, ASKED), stages).usage
        return found.input_tokens, found.cached_tokens

    text = states.from_text("A state of its own, for the count.")
    image = image_of("C05_plain.png")
    without, _ = usage(text)
    with_image, cached = usage(states.with_images(text, [image]))
    # An image has a token at each end. A stock engine's text is one piece, so that a token less may come out.
    assert 0 <= len(ASKED) * (image.n_tokens + 2) - (with_image - without) <= 2 * len(ASKED)
    # The picture is read once for the request, not once for each question; the first may pay for it.
    assert cached >= (len(ASKED) - 1) * image.n_tokens


def test_a_new_question_about_a_picture_seen_before_reads_the_question_only(session: decide.Session) -> None:
    state = states.with_images(states.from_text("Seen before."), [image_of("C05_plain.png")])
    new = questions.load([questions.inline("Is it a new question?")])
    for asked in (ASKED, ASKED):
        session.decide(request.Request(state, asked), timing.Stages(began_at_s=time.perf_counter()))
    usage = session.decide(request.Request(state, new), timing.Stages(began_at_s=time.perf_counter())).usage
    assert usage.input_tokens - usage.cached_tokens < 80


# ------------------------------------------------------------------------------------------- the command


@pytest.fixture
def seeing(openjev: Command, tmp_path: Path, tiny_projector: Path) -> Command:
    """The command, its configured model able to see."""
    path = tmp_path / "config" / "openjev" / "config.toml"
    path.write_text(path.read_text() + f'mmproj = "{tiny_projector}"\n')
    for name in (
        "C05_plain.png",
        "C05_still.webp",
        "C05_moving.webp",
        "C01_plain.png",
        "C07_heic_inside.jpg",
    ):
        shutil.copy(CASES / name, tmp_path)
    return openjev


def notices(run: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Return the notices of a call, without the two that depend on what ran before and on a random model."""
    lines = run.stderr.decode().splitlines()
    return [line for line in lines if "answer label" not in line and not line.startswith("... ")]


def test_an_image_by_path_stdin_and_option_gets_the_same_answer(seeing: Command, tmp_path: Path) -> None:
    data = (tmp_path / "C05_plain.png").read_bytes()
    runs = [
        seeing("ask", "C05_plain.png", "-Q", "Does the sign say GO?"),
        seeing("ask", "-", "-Q", "Does the sign say GO?", stdin=data),
        seeing("ask", "-Q", "Does the sign say GO?", stdin=data),
        seeing("ask", "-i", "C05_plain.png", "-Q", "Does the sign say GO?"),
        seeing("ask", "-i", "-", "-Q", "Does the sign say GO?", stdin=data),
    ]
    answers = [json.loads(run.stdout)["answers"]["q1"]["noul"] for run in runs]
    assert answers == pytest.approx([answers[0]] * 5, abs=SAME)
    assert [notices(run) for run in runs] == [[]] * 5


def test_is_and_pick_see_too(seeing: Command) -> None:
    run = seeing("is", "Does the sign say GO?", "-i", "C05_plain.png")
    assert run.returncode in (0, 1)
    run = seeing("pick", "Which sign is it?", "-o", "go", "-o", "stop", "C05_plain.png", "-f", "value")
    assert run.stdout in (b"go\n", b"stop\n")


def test_an_animation_is_answered_with_a_notice(seeing: Command) -> None:
    run = seeing("ask", "C05_moving.webp", "-Q", "a?")
    assert run.returncode == 0
    assert notices(run) == ["note: C05_moving.webp: an animation of 2 frames; the first one is used"]


def test_the_budget_changes_what_is_sent(seeing: Command) -> None:
    small, whole = (
        json.loads(seeing("ask", "C01_plain.png", "-Q", "a?", *more).stdout)["usage"]["input_tokens"]
        for more in (("--image-tokens", "64"), ())
    )
    sizes = [images.sent_size(640, 400, tokens)[0] for tokens in (64, 512)]
    assert whole - small == (sizes[1][0] * sizes[1][1] - sizes[0][0] * sizes[0][1]) // 1024


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["C07_heic_inside.jpg"], 2, "C07_heic_inside.jpg: a HEIC image, which is not supported"),
        (["C05_plain.png", "--image-tokens", "5"], 2, "--image-tokens 5: not between 16 and 4096"),
        (["-i", "-", "-i", "-"], 2, "-i - reads the image from stdin, and something else would read it too"),
        (["-i", "nothing.png"], 2, "nothing.png: no such file"),
        (["-i", "."], 2, ".: is a directory"),
        (["-i", "C05_plain.png"] * 9, 2, "9 images: a request may hold 8"),
    ],
)
def test_images_that_cannot_be_used_are_one_line(
    seeing: Command, arguments: list[str], code: int, message: str
) -> None:
    run = seeing("ask", *arguments, "-Q", "a?")
    assert run.returncode == code
    assert run.stdout == b""
    assert run.stderr.decode().splitlines()[0] == f"error: {message}"


def test_every_unusable_image_is_named(seeing: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    run = seeing("ask", "-i", "empty.png", "-i", "C05_plain.png", "-i", "C07_heic_inside.jpg", "-Q", "a?")
    assert [line for line in run.stderr.decode().splitlines() if line.startswith("error:")] == [
        "error: empty.png: the file is empty",
        "error: C07_heic_inside.jpg: a HEIC image, which is not supported",
    ]


def test_a_model_without_projector_refuses_before_it_is_started(openjev: Command, tmp_path: Path) -> None:
    run = openjev("ask", CASES / "C05_plain.png", "-Q", "a?", env={"XDG_RUNTIME_DIR": str(tmp_path / "none")})
    assert run.returncode == 3
    assert run.stderr.decode().splitlines() == [
        "error: tiny-hybrid does not see images: it has no projector",
        (
            "next: ask a profile that sees (fast, balanced, quality, max): -p NAME; "
            "or give the projector: --mmproj FILE"
        ),
    ]
    assert not (tmp_path / "none").exists()


def test_reuse_knows_a_picture_by_its_pixels(seeing: Command, tmp_path: Path) -> None:
    def ask_again(source: bytes) -> tuple[float, int]:
        (tmp_path / "sign").write_bytes(source)
        wire = json.loads(seeing("ask", "sign", "-Q", "Does the sign say GO?", "--reuse").stdout)
        return wire["answers"]["q1"]["noul"], wire["timing"]["reused_answers"]

    picture = pil.open(tmp_path / "C05_plain.png").convert("RGB")
    first, _ = ask_again(encoded(picture, "PNG"))
    assert ask_again(encoded(picture, "WEBP", lossless=True)) == (first, 1)
    inverted, reused = ask_again(encoded(pil.eval(picture, lambda value: 255 - value), "PNG"))
    assert reused == 0
    assert abs(inverted - first) > 1e-4


def test_markup_in_a_text_beside_an_image_is_data_or_refused(session: decide.Session, ask: Ask) -> None:
    """A stock engine reads the whole text with special tokens; the patched one keeps segments apart."""
    image = image_of("C05_plain.png")
    plain = states.with_images(states.from_text("This is the end."), [image])
    marked = states.with_images(states.from_text("This is the <|im_end|> end."), [image])
    ask(plain)
    try:
        answers = ask(marked)
    except errors.InputError as exc:
        assert "scripts/build-llama.sh" in exc.next_step  # noqa: PT017 - either is right
    else:
        assert apart(answers, ask(plain)) > 0


def test_images_that_do_not_fit_with_the_text_are_refused_with_both_numbers(seeing: Command) -> None:
    run = seeing("ask", "-i", "C05_plain.png", "--text", "word " * 9000, "-Q", "a?")
    assert run.returncode == 2
    assert run.stdout == b""
    (message,) = (line for line in run.stderr.decode().splitlines() if line.startswith("error: "))
    found = re.fullmatch(r"error: .* need (\d+) tokens, but (\d+) are available; nothing was cut", message)
    assert found is not None, message
    assert int(found[1]) > 9000 > int(found[2])
