"""A Jev endpoint asked over HTTP: what is sent, what comes back, and every way it can go wrong."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openjev_cli import (
    answers,
    cache,
    config,
    decide,
    endpoint,
    errors,
    images,
    questions,
    reading,
    request,
    state,
    timing,
)
from openjev_cli.engine import systemone

QUESTIONS = questions.load(
    [
        questions.inline("refund: Is a refund asked for?"),
        questions.inline("team: Which? [billing: Money | sales]"),
        questions.inline("urgency: How? [Low < High]"),
    ]
)
ASKED = request.Request(state.from_text("hello"), QUESTIONS)
GOOD = {
    "model": "jev-1",
    "answers": {
        "refund": {"type": "noul", "noul": 0.75},
        "team": {
            "type": "choice",
            "choice": "sales",
            "probabilities": {"sales": 0.9, "billing": 0.1},
            "confidence": 0.8,
        },
        "urgency": {"type": "score", "score": 0.25, "probabilities": {"0": 0.75, "1": 0.25}},
    },
    "usage": {"input_tokens": 321, "output_tokens": 3},
    # Far below what a round trip takes here: the stages of a call never exceed its own time.
    "timing": {"processing_ms": 0.12, "queue_ms": 0.015, "inference_ms": 0.0825},
}


class Jev:
    """A local server with one canned reply. asked: (method, path, headers, body) of every request."""

    def __init__(self) -> None:
        self.status = 200
        self.reply: Any = GOOD
        self.props: Any = None
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.port = 0

    def posted(self) -> list[tuple[str, str, dict[str, str], bytes]]:
        return [each for each in self.asked if each[0] == "POST"]


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Jev]:
    jev = Jev()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.note(b"")
            if self.path.endswith("/props") and jev.props is not None:
                self.send(200, jev.props)
            else:
                self.send(jev.status if jev.status == 401 else 404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            self.note(self.rfile.read(int(self.headers["Content-Length"])))
            self.send(jev.status, jev.reply)

        def note(self, body: bytes) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            jev.asked.append((self.command, self.path, headers, body))

        def send(self, status: int, reply: Any) -> None:
            raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # An untrusted certificate ends the handshake; the server need not print that.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    jev.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield jev
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def jev() -> Iterator[Jev]:
    with serving() as served:
        yield served


def ask(address: str, tmp_path: Path, judged: state.State | None = None, **env: str) -> answers.Decision:
    settings = config.load({"connect": address}, env={"HOME": str(tmp_path), **env}, cwd=tmp_path)
    asked = request.Request(judged or state.from_text("hello"), QUESTIONS)
    with decide.Session(settings, {}) as session:
        return session.decide(asked, timing.Stages(0.0))


def test_the_answers_are_those_of_the_endpoint(jev: Jev, tmp_path: Path) -> None:
    decision = ask(f"http://127.0.0.1:{jev.port}", tmp_path)
    assert decision.model == "jev-1"
    assert decision.answers == (
        answers.NoulAnswer("refund", 0.75),
        answers.ChoiceAnswer("team", "sales", {"billing": 0.1, "sales": 0.9}),
        answers.ScoreAnswer("urgency", 0.25, ("Low", "High"), ("Low", "High"), (0.75, 0.25)),
    )
    assert decision.usage == answers.Usage(321, 3)
    assert (decision.timing.queue_ms, decision.timing.inference_ms, decision.notices) == (0.015, 0.0825, ())


def test_a_jev_endpoint_is_sent_several_requests_at_once(jev: Jev, tmp_path: Path) -> None:
    settings = config.load({"connect": f"http://127.0.0.1:{jev.port}"}, env={}, cwd=tmp_path)
    with decide.Session(settings, {}) as session:
        assert session.slots() == 8


def test_the_state_goes_out_as_it_was_written(jev: Jev, tmp_path: Path) -> None:
    written = '{"total":1.50,"who":"Zoë","n":12345678901234567890}'
    judged = state.from_value(reading.parse_json(written, name="x"))
    ask(f"http://127.0.0.1:{jev.port}/v1/systemone", tmp_path, judged)
    ((_, path, headers, body),) = jev.asked
    assert (path, headers["host"]) == ("/v1/systemone", f"127.0.0.1:{jev.port}")
    assert body.decode().startswith('{"state":' + written + ',"questions": {')
    sent = json.loads(body)
    assert (sent["model"], list(sent["questions"])) == ("jev-latest", ["refund", "team", "urgency"])
    # What was sent is the wire form: it reads back as the same questions.
    assert questions.from_wire(reading.parse_json(body.decode(), name="x")["questions"]) == (QUESTIONS, ())  # type: ignore[call-overload, index]


def test_a_chat_stays_a_chat(jev: Jev, tmp_path: Path) -> None:
    chat: list[reading.Value] = [{"role": "user", "content": "hi"}]
    ask(f"http://127.0.0.1:{jev.port}/v1/", tmp_path, state.from_value(chat))
    assert json.loads(jev.posted()[0][3])["state"] == chat


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", ["/props", "/v1/systemone"]),
        ("/", ["/props", "/v1/systemone"]),
        ("/v1", ["/props", "/v1/systemone"]),
        ("/v1/systemone", ["/v1/systemone"]),
        ("/some/jev/v1/", ["/some/jev/props", "/some/jev/v1/systemone"]),
    ],
)
def test_the_address_may_name_any_part_of_the_api(
    path: str, asked: list[str], jev: Jev, tmp_path: Path
) -> None:
    ask(f"http://127.0.0.1:{jev.port}{path}", tmp_path)
    assert [each[1] for each in jev.asked] == asked


def test_the_key_of_the_environment_is_sent_and_a_missing_one_named(jev: Jev, tmp_path: Path) -> None:
    ask(f"http://127.0.0.1:{jev.port}", tmp_path, OPENJEV_API_KEY="s3cret")
    assert {each[2].get("authorization") for each in jev.asked} == {"Bearer s3cret"}
    jev.status = 401
    for env, says in (({}, "wants a key"), ({"OPENJEV_API_KEY": "s3cret"}, "does not accept the key")):
        with pytest.raises(errors.EngineError) as caught:
            ask(f"http://127.0.0.1:{jev.port}", tmp_path, **env)
        assert caught.value.message == f"the server at http://127.0.0.1:{jev.port} {says} (status 401)"
        assert caught.value.next_step == "Set OPENJEV_API_KEY."


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    reply = json.loads(json.dumps(GOOD))
    change(reply["answers"])
    return reply  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ([], "it has no answers"),
        (changed(lambda a: a.pop("team")), "team is not answered"),
        (changed(lambda a: a["team"]["probabilities"].pop("billing")), "team lacks probabilities"),
        (changed(lambda a: a["refund"].update(noul=1.5)), "refund has something that is no probability"),
        (changed(lambda a: a["refund"].update(noul=True)), "refund has something that is no probability"),
        (changed(lambda a: a["refund"].pop("noul")), "refund has something that is no probability"),
        (
            changed(lambda a: a["team"]["probabilities"].update(sales=0.5)),
            "the probabilities of team do not sum to 1",
        ),
    ],
)
def test_a_reply_that_is_not_whole_is_never_an_answer(
    reply: Any, problem: str, jev: Jev, tmp_path: Path
) -> None:
    jev.reply = reply
    with pytest.raises(errors.ReadoutError) as caught:
        ask(f"http://127.0.0.1:{jev.port}", tmp_path)
    assert (
        caught.value.message
        == f"the reply of the server at http://127.0.0.1:{jev.port} cannot be used: {problem}"
    )


@pytest.mark.parametrize(
    ("status", "reply", "kind", "says"),
    [
        (
            422,
            {"detail": [{"loc": ["body", "questions"], "msg": "too many"}, {"msg": "and more"}]},
            errors.InputError,
            " refuses the request (status 422): body.questions: too many; and more",
        ),
        (413, {"detail": "4 MB"}, errors.InputError, ": the request is too large: 4 MB"),
        (529, {"error": {"message": "come back"}}, errors.EngineError, " is busy (status 529): come back"),
        (500, {}, errors.EngineError, " answered with status 500"),
        (302, {}, errors.EngineError, " answered with status 302"),
        (
            200,
            b"<html>",
            errors.EngineError,
            " answered /v1/systemone with status 200 and something that is not JSON",
        ),
    ],
)
def test_a_refusal_keeps_the_words_of_the_endpoint(
    status: int, reply: Any, kind: type[errors.OpenjevError], says: str, jev: Jev, tmp_path: Path
) -> None:
    jev.status, jev.reply = status, reply
    with pytest.raises(kind) as caught:
        ask(f"http://127.0.0.1:{jev.port}", tmp_path)
    assert caught.value.message == f"the server at http://127.0.0.1:{jev.port}{says}"


@pytest.mark.parametrize(
    ("flags", "name"), [({"readout": "words"}, "--readout"), ({"prior": "0.5"}, "prior"), ({}, "--reuse")]
)
def test_what_an_endpoint_would_not_heed_is_refused_before_anything_is_asked(
    flags: dict[str, str], name: str, jev: Jev, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{jev.port}"
    settings = config.load({"connect": address, **flags}, env={"HOME": str(tmp_path)}, cwd=tmp_path)
    reuse = cache.AnswerCache(tmp_path / "answers") if name == "--reuse" else None
    with decide.Session(settings, {}, reuse=reuse) as session:
        for ask_it in (session.slots, lambda: session.decide(ASKED, timing.Stages(0.0)), session.provenance):
            with pytest.raises(errors.InputError) as caught:
                ask_it()
            assert caught.value.problems == (
                f"{name}: {address} makes its own prompts, and reads them itself",
            )
    assert jev.posted() == []


def test_a_readout_of_a_config_file_is_said_not_to_be_applied_and_not_recorded(
    jev: Jev, tmp_path: Path
) -> None:
    written = tmp_path / ".config" / "openjev" / "config.toml"
    written.parent.mkdir(parents=True)
    written.write_text('readout = "words"\nprior = 0.5\n')
    settings = config.load(
        {"connect": f"http://127.0.0.1:{jev.port}"}, env={"HOME": str(tmp_path)}, cwd=tmp_path
    )
    with decide.Session(settings, {}) as session:
        assert session.decide(ASKED, timing.Stages(0.0)).notices == (
            f"the readout words of {written} is not applied: prompts are made elsewhere",
            f"the prior 0.5 of {written} is not applied: prompts are made elsewhere",
        )
        recorded = session.provenance()
    assert recorded.wording == "none"
    assert {"readout", "prior"} & dict(recorded.settings).keys() == set()


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(errors.EngineError) as caught:
        ask("http://127.0.0.1:9", tmp_path)
    assert (
        caught.value.message == "nothing that can be asked answers at http://127.0.0.1:9: Connection refused"
    )


def test_tls_is_used_and_a_certificate_that_is_not_trusted_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(context) as jev:
        with pytest.raises(errors.EngineError) as caught:
            ask(f"https://localhost:{jev.port}", tmp_path)
        assert "its certificate is not trusted (self-signed certificate)" in caught.value.message
        assert jev.asked == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert ask(f"https://localhost:{jev.port}", tmp_path).model == "jev-1"
        # A server that speaks TLS and is asked without is an error, not a bug.
        with pytest.raises(errors.EngineError):
            ask(f"http://localhost:{jev.port}", tmp_path)


# Addresses.


@pytest.mark.parametrize(
    ("address", "has_key", "notices"),
    [
        ("http://localhost:8080", True, ()),
        ("http://127.0.0.1", True, ()),
        ("http://[::1]:80/v1", True, ()),
        ("/run/llama.sock", True, ()),
        ("https://jev.example", False, ("the state and the questions leave this machine for jev.example",)),
        (
            "http://10.0.0.7:8080",
            True,
            ("the state, the questions and the key leave this machine for 10.0.0.7, unencrypted",),
        ),
    ],
)
def test_what_leaves_the_machine_is_said(address: str, has_key: bool, notices: tuple[str, ...]) -> None:
    assert endpoint.parse(address, has_key=has_key).notices == notices


@pytest.mark.parametrize(
    "address",
    ["ftp://x", "http://", "http://x:99999", "http://x:0", "http://x?key=1", "https://", "", "http://[x"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        endpoint.parse(address)
    assert caught.value.message == f"--connect {address}: not an address of a server"


def test_a_password_in_an_address_is_refused_without_showing_it() -> None:
    with pytest.raises(errors.InputError) as caught:
        endpoint.parse("https://me:s3cret@jev.example")
    assert "s3cret" not in caught.value.message + caught.value.next_step


def picture(colour: int) -> images.Image:
    from io import BytesIO

    from PIL import Image

    sink = BytesIO()
    Image.new("RGB", (32, 32), (colour, 0, 0)).save(sink, "PNG")
    return images.from_bytes(sink.getvalue(), name="x")


def sent(judged: state.State) -> tuple[Any, list[int]]:
    """The state of a body with its placeholders as [1], [2], and the red of each asset's first pixel."""
    import base64
    from io import BytesIO

    from PIL import Image

    wire = json.loads(systemone.body(request.Request(judged, QUESTIONS)))
    text, reds = json.dumps(wire["state"]), []
    for number, (key, asset) in enumerate(wire["assets"].items(), start=1):
        assert text.count(key) == 1
        text = text.replace(key, f"[{number}]")
        assert (asset["type"], asset["format"]) == ("image", "png")
        reds.append(Image.open(BytesIO(base64.b64decode(asset["data_base64"]))).getpixel((0, 0))[0])  # type: ignore[index]
    return json.loads(text), reds


def test_images_go_out_as_assets_where_the_state_shows_them() -> None:
    red, dark = picture(200), picture(50)
    assert sent(state.with_images(None, [red])) == ("[1]", [200])
    assert sent(state.with_images(state.from_text("hi"), [red, dark])) == ("[1]\n[2]\nhi", [200, 50])
    value = state.from_value({"a": 1})  # type: ignore[dict-item]
    assert sent(state.with_images(value, [dark])) == ({"images": ["[1]"], "state": {"a": 1}}, [50])
    chat = state.State(
        "chat", "[]", (state.Message("user", "see", ("see ", red)), state.Message("user", "ok"))
    )
    assert sent(chat) == (
        [{"role": "user", "content": "see [1]"}, {"role": "user", "content": "ok"}],
        [200],
    )


def test_a_native_model_gets_images_as_the_engine_does_and_none_of_a_chat() -> None:
    shown = request.Request(state.with_images(None, [picture(9)]), QUESTIONS)
    wire = json.loads(systemone.body(shown, is_native=True))
    assert (wire["state"], [url[:22] for url in wire["images"]]) == ("", ["data:image/bmp;base64,"])
    chat = state.State("chat", "[]", (state.Message("user", "", (picture(9),)),))
    with pytest.raises(errors.InputError) as caught:
        systemone.body(request.Request(chat, QUESTIONS), is_native=True)
    assert caught.value.message == "images inside a chat are not sent to a native decision model"
