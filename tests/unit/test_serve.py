"""The service over real sockets, in front of a session that the test holds in its hands."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from jevcompat import validate
from jevcompat.client import Response

from openjev_cli import answers, api, config, decide, errors, listen, profiles, serve
from openjev_cli.admission import Gate
from openjev_cli.engine.client import Cancelled
from openjev_cli.request import Request
from openjev_cli.timing import Stages

BODY = {"model": "jev-latest", "state": "s", "questions": {"q": {"type": "noul", "instructions": "i"}}}
# The session's default answer: certain of the first option.
Distribution = Callable[[int], list[float]]


class Engine:
    """Stands where a session does. Answers with `distribution`, after `may_answer` is set; notes what it saw."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.asked: list[Request] = []
        self.cancelled: list[Request] = []
        self.raises: errors.OpenjevError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.tokens = 10
        self.calibration: str | None = None
        self.distribution: Distribution = lambda n: [1.0] + [0.0] * (n - 1)

    def slots(self) -> int:
        return 1

    def decide(
        self,
        asked: Request,
        stages: Stages,
        *,
        progress: Callable[[int, int], None] = lambda read, total: None,
        cancel: decide.Cancel | None = None,
    ) -> answers.Decision:
        stages.enter("prepare")
        self.asked.append(asked)
        progress(0, self.tokens)
        while not self.may_answer.wait(0.005):
            if cancel is not None and cancel.is_set:
                self.cancelled.append(asked)
                raise Cancelled
        if self.raises is not None:
            raise self.raises
        sizes = [len(getattr(q, "options", getattr(q, "levels", "yn"))) for q in asked.questions]
        typed = tuple(
            answers.answer(q, self.distribution(n)) for q, n in zip(asked.questions, sizes, strict=True)
        )
        usage = answers.Usage(self.tokens, len(typed), cached_tokens=3)
        return answers.Decision(
            "model-x",
            typed,
            usage,
            stages.finish(queue_ms=0.0, inference_ms=0.0),
            calibration=self.calibration,
        )


class Running:
    """A service that listens."""

    def __init__(self, service: api.Service, engine: Engine, address: tuple[str, int]) -> None:
        self.service = service
        self.engine = engine
        self.address = address
        self.url = f"http://{address[0]}:{address[1]}"
        self.http = httpx.Client(base_url=self.url, timeout=20.0, trust_env=False)

    @property
    def gate(self) -> Gate:
        gate = self.service._gate
        assert gate is not None
        return gate

    def ask(self, body: object = BODY, **more: Any) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post("/v1/systemone", content=body, **more)
        return self.http.post("/v1/systemone", json=body, **more)

    def ask_later(self, body: object = BODY) -> tuple[threading.Thread, list[httpx.Response]]:
        """Ask in another thread, on a connection of its own."""
        replies: list[httpx.Response] = []

        def ask() -> None:
            with httpx.Client(base_url=self.url, timeout=20.0, trust_env=False) as http:
                replies.append(http.post("/v1/systemone", json=body))

        thread = threading.Thread(target=ask)
        thread.start()
        return thread, replies


def until(is_so: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < give_up_at_s, "it never came to be"
        time.sleep(0.005)


@contextmanager
def running(
    *, workers: int = 2, queue: int = 2, opened: bool = True, is_local: bool = True, **settings: object
) -> Iterator[Running]:
    loaded = config.load(settings, env={"HOME": "/nonexistent"}, cwd=Path("/"))
    engine = Engine()
    service = api.Service(
        loaded, cast(decide.Session, engine), host="127.0.0.1" if is_local else "0.0.0.0", is_local=is_local
    )
    if opened:
        service.open("model-x", Gate(workers=workers, queue=queue))
    bound = listen.tcp("127.0.0.1", 0)
    address = bound.getsockname()
    server = serve.listener(service, drain_s=10)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    until(lambda: server.started)
    found = Running(service, engine, address)
    try:
        yield found
    finally:
        engine.may_answer.set()
        found.http.close()
        server.should_exit = True
        thread.join(20.0)
        assert not thread.is_alive()
        bound.close()
        if service.is_open:
            found.gate.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture
def service(shared: Running) -> Iterator[Running]:
    """One service for all tests that leave it as it was; the engine is a new one every time."""
    shared.engine.reset()
    yield shared
    shared.engine.may_answer.set()
    until(lambda: shared.gate.at_work == 0 and shared.service._buffered == 0)


def stages_of(reply: httpx.Response) -> dict[str, float]:
    """The stages that Server-Timing tells, by their names in the body."""
    pairs = [entry.split(";dur=") for entry in reply.headers["server-timing"].split(", ")]
    return {("processing" if name == "total" else name) + "_ms": float(ms) for name, ms in pairs}


# Replies


def test_a_question_is_answered_in_the_wire_shape(service: Running) -> None:
    reply = service.ask()
    body = reply.json()
    assert reply.status_code == 200
    assert body.pop("timing").keys() == {
        "processing_ms",
        "parse_ms",
        "prepare_ms",
        "queue_ms",
        "inference_ms",
    }
    assert body == {
        "model": "model-x",
        "answers": {"q": {"type": "noul", "noul": 1.0}},
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-openjev-model"] == "model-x"
    assert reply.headers["x-openjev-cached-tokens"] == "3"


def test_what_the_api_does_not_know_has_a_name_that_says_so() -> None:
    with running(response_timing=False) as service:
        service.engine.calibration = "fast@1"
        reply = service.ask()
        assert reply.json()["x_calibration"] == "fast@1"
        seen = Response(200, dict(reply.headers), reply.content, 0.0, reply.json())
        assert validate.validate_success(BODY, seen) == []


def test_what_is_no_http_gets_a_reply_of_the_same_shape(service: Running) -> None:
    with socket.create_connection(service.address) as raw:
        raw.settimeout(10.0)
        raw.sendall(b"secret\x00 stuff\r\n\r\n")
        reply = b""
        while piece := raw.recv(10_000):
            reply += piece
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"x-typesafe-request-id: " in head
    assert json.loads(body)["detail"] == {
        "error_type": "invalid_request",
        "message": "this is no HTTP/1.1 request",
    }
    assert json.loads(body)["timing"].keys() >= {"processing_ms"}
    assert b"secret" not in reply


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/systemone", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/health", 200),
        ("GET", "/health/live", 200),
        ("GET", "/v1/systemone", 405),
        ("GET", "/nowhere", 404),
        ("OPTIONS", "/v1/systemone", 405),
    ],
)
def test_every_reply_tells_its_time_alike_in_body_and_headers(
    service: Running, method: str, path: str, status: int
) -> None:
    reply = service.http.request(method, path, json=BODY if method == "POST" else None)
    assert reply.status_code == status
    body = reply.json()
    assert body["timing"] == stages_of(reply)
    assert json.loads(reply.headers["x-openjev-processing-ms"]) == body["timing"]["processing_ms"]
    assert sum(body["timing"].values()) == pytest.approx(2 * body["timing"]["processing_ms"])
    assert len(reply.headers["x-typesafe-request-id"]) == 32
    assert not [name for name in reply.headers if name.startswith("access-control-")]


def test_response_timing_false_removes_the_body_field_only() -> None:
    with running(response_timing=False) as service:
        for reply in (service.ask(), service.ask({}), service.http.get("/v1/models")):
            assert "timing" not in reply.json()
            assert "processing_ms" in stages_of(reply)


def test_the_models_route_lists_every_name_that_is_accepted(service: Running) -> None:
    listed = service.http.get("/v1/models").json()["models"]
    assert [model["name"] for model in listed] == ["jev-latest", "openjev-latest", "tiny", "model-x"]
    assert {tuple(model) for model in listed} == {("name", "description", "release_date")}
    for model in listed:
        assert service.ask({**BODY, "model": model["name"]}).status_code == 200


def test_the_profile_that_answers_may_be_named_also_where_nobody_chose_it(tmp_path: Path) -> None:
    fast = profiles.PROFILES["fast"]
    installed = tmp_path / "models" / "fast" / fast.weights.name
    installed.parent.mkdir(parents=True)
    with installed.open("wb") as file:
        file.truncate(fast.weights.size_bytes)  # sparse; only its size is looked at here
    with running(cache_dir=tmp_path) as service:
        listed = [model["name"] for model in service.http.get("/v1/models").json()["models"]]
        assert listed == ["jev-latest", "openjev-latest", "fast", "model-x"]
        assert service.ask({**BODY, "model": "fast"}).status_code == 200
        assert service.ask({**BODY, "model": "tiny"}).status_code == 404


def test_no_profile_may_be_named_where_a_file_answers(tmp_path: Path) -> None:
    with running(model=tmp_path / "own.gguf") as service:
        listed = [model["name"] for model in service.http.get("/v1/models").json()["models"]]
        assert listed == ["jev-latest", "openjev-latest", "model-x"]


def test_an_unknown_model_is_not_found_or_one_of_all_problems(service: Running) -> None:
    known = "the models here are jev-latest, openjev-latest, tiny, model-x"
    alone = service.ask({**BODY, "model": "secret-9"})
    assert alone.status_code == 404
    assert alone.json()["detail"] == {
        "error_type": "not_found",
        "message": known,
        "next_step": "GET /v1/models lists them",
    }
    both = service.ask({"model": "secret-9", "state": 5, "questions": {}})
    assert both.status_code == 422
    assert [(d["loc"], d["msg"]) for d in both.json()["detail"]] == [
        (["body", "model"], known),
        (["body", "state"], "must be a text, an object or an array"),
        (["body", "questions"], "must hold at least one question"),
    ]


# G02: confidence


@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("kind", ["uniform", "one-hot", "mixed"])
def test_a_choices_confidence_is_typesafes(service: Running, k: int, kind: str) -> None:
    service.engine.distribution = _distribution(kind)
    question = {"type": "choice", "instructions": "i", "criteria": {f"o{i}": None for i in range(k)}}
    answer = service.ask({**BODY, "questions": {"q": question}}).json()["answers"]["q"]
    served = list(answer["probabilities"].values())
    assert answer["confidence"] == pytest.approx((k * max(served) - 1) / (k - 1), abs=1e-6)
    assert answer["confidence"] == pytest.approx(validate.choice_confidence(served), abs=1e-6)
    if kind != "mixed":
        assert answer["confidence"] == pytest.approx(float(kind == "one-hot"), abs=1e-9)


@pytest.mark.parametrize("n", [2, 5, 10])
@pytest.mark.parametrize("kind", ["uniform", "one-hot", "mixed"])
def test_a_scores_confidence_is_typesafes(service: Running, n: int, kind: str) -> None:
    service.engine.distribution = _distribution(kind)
    question = {"type": "score", "instructions": "i", "criteria": [f"l{i}" for i in range(n)]}
    answer = service.ask({**BODY, "questions": {"q": question}}).json()["answers"]["q"]
    served = list(answer["probabilities"].values())
    assert answer["confidence"] == pytest.approx(validate.score_confidence(served), abs=1e-6)
    assert answer["score"] == pytest.approx(sum(i * p for i, p in enumerate(served)), abs=1e-6)


def test_a_noul_has_no_confidence_of_its_own(service: Running) -> None:
    assert service.ask().json()["answers"]["q"].keys() == {"type", "noul"}


def _distribution(kind: str) -> Distribution:
    def give(n: int) -> list[float]:
        if kind == "uniform":
            return [1.0 / n] * n
        if kind == "one-hot":
            return [float(i == n // 2) for i in range(n)]
        weights = [1.0 + (7 * i) % 5 for i in range(n)]
        return [weight / sum(weights) for weight in weights]

    return give


# Who may ask


def test_with_a_key_only_its_bearer_is_answered() -> None:
    with running(api_key="k3y-of-this-test") as service:
        for headers, message in (
            ({}, "an API key is needed"),
            ({"authorization": "Bearer wrong"}, "the API key is wrong"),
            ({"authorization": "Basic k3y-of-this-test"}, "the API key is wrong"),
            ({"authorization": "Bearer k3y-of-this-tesT"}, "the API key is wrong"),
        ):
            for reply in (service.ask(headers=headers), service.http.get("/v1/models", headers=headers)):
                assert reply.status_code == 401
                assert reply.headers["www-authenticate"] == "Bearer"
                assert reply.json()["detail"]["error_type"] == "authentication_error"
                assert reply.json()["detail"]["message"] == message
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} k3y-of-this-test"}
            assert service.ask(headers=headers).status_code == 200
        assert service.http.get("/health").status_code == 200  # for probes, which have no key


def test_without_a_key_any_authorization_is_ignored(service: Running) -> None:
    assert service.ask(headers={"authorization": "Bearer whatever"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1234", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("[::1].evil.example", 403),
    ],
)
def test_on_loopback_only_names_of_loopback_are_served(service: Running, host: str, status: int) -> None:
    assert service.ask(headers={"host": host}).status_code == status
    assert service.http.get("/nowhere", headers={"host": host}).status_code == (404 if status == 200 else 403)


def test_beyond_loopback_any_host_name_is_served_to_who_has_the_key() -> None:
    with running(api_key="key", is_local=False) as service:
        headers = {"host": "box.example", "authorization": "Bearer key"}
        assert service.ask(headers=headers).status_code == 200


def test_a_web_page_is_not_answered(service: Running) -> None:
    assert service.ask(headers={"origin": "https://evil.example"}).status_code == 403
    assert service.ask(headers={"origin": "null"}).status_code == 403
    assert service.ask(headers={"origin": service.url}).status_code == 200


# What is refused


def test_a_refusal_tells_what_was_spent_on_reading(service: Running) -> None:
    stages = stages_of(service.ask({"state": "x" * 100_000, "questions": {}}))
    assert stages["parse_ms"] > 0.0
    assert stages["prepare_ms"] == 0.0


def test_all_problems_of_a_body_are_told_at_once_and_nothing_of_it_repeated(service: Running) -> None:
    reply = service.ask(
        {
            "state": 7,
            "questions": {
                "a": {"type": "secret-kind", "instructions": "secret"},
                "b": {"type": "choice", "instructions": "x", "criteria": {"only-secret": "secret"}},
                "c": {"type": "choice", "instructions": "x", "criteria": {"secret-option": 5, "two": None}},
                "d": {"type": "score", "criteria": ["one", None]},
                "i" * 100: {"type": "noul", "criteria": ["secret"]},
            },
        }
    )
    assert reply.status_code == 422
    assert "secret" not in reply.text
    assert [(d["type"], d["loc"], d["msg"]) for d in reply.json()["detail"]] == [
        ("value_error", ["body", "state"], "must be a text, an object or an array"),
        ("value_error", ["body", "questions", "a", "type"], "must be noul, choice or score"),
        ("value_error", ["body", "questions", "b", "criteria"], "1 option: 2 to 255 are allowed"),
        ("value_error", ["body", "questions", "c", "criteria"], "must be a text, an object or an array"),
        ("value_error", ["body", "questions", "d", "criteria", 1], "a level must be a text, an object or an array"),
        (
            "value_error",
            ["body", "questions", "i" * 64 + "...", "criteria"],
            "must be an object with true and false, or absent",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, "not valid JSON (line 1, column 1)"),
        (b"", 422, "not valid JSON (line 1, column 1)"),
        (b"\xff", 422, "is not UTF-8 text"),
        (b"[]", 422, "must be an object with state and questions"),
        (b"{}", 422, "is missing"),
    ],
)
def test_a_body_that_is_no_request_is_a_422(service: Running, body: bytes, status: int, said: str) -> None:
    reply = service.ask(body)
    assert (reply.status_code, reply.json()["detail"][0]["msg"]) == (status, said)


def test_a_body_is_read_packed_and_in_parts(service: Running) -> None:
    import gzip

    packed = gzip.compress(json.dumps(BODY).encode())
    assert service.ask(packed, headers={"content-encoding": "gzip"}).status_code == 200
    assert service.ask(packed, headers={"content-encoding": "br"}).status_code == 415
    bomb = gzip.compress(b" " * (api.MAX_BODY_BYTES + 1))
    assert service.ask(bomb, headers={"content-encoding": "gzip"}).status_code == 413
    parts = {"request": (None, json.dumps(BODY), "application/json")}
    assert service.http.post("/v1/systemone", files=parts).status_code == 200
    assert service.http.post("/v1/systemone", files={"other": b"x"}).status_code == 422


def test_more_questions_than_allowed_are_refused(service: Running) -> None:
    many = {f"q{i}": {"type": "noul"} for i in range(65)}
    reply = service.ask({**BODY, "questions": many})
    assert reply.json()["detail"] == [
        {"type": "value_error", "loc": ["body", "questions"], "msg": "65 questions: at most 64 are allowed"}
    ]
    many.popitem()
    assert service.ask({**BODY, "questions": many}).status_code == 200


def test_more_tokens_than_allowed_are_refused_before_any_is_read(service: Running) -> None:
    service.engine.tokens = api.MAX_TOKENS + 1
    reply = service.ask()
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["msg"] == "131073 tokens to read: at most 131072 are allowed"


def test_more_text_than_allowed_is_refused(service: Running) -> None:
    reply = service.ask({**BODY, "state": "x" * (api.MAX_TEXT_BYTES - 5)})
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["msg"] == "524289 bytes of text to read: at most 524288 are allowed"
    assert service.ask({**BODY, "state": "x" * (api.MAX_TEXT_BYTES - 6)}).status_code == 200
    assert len(service.engine.asked) == 1


def test_a_body_too_large_is_refused_whether_announced_or_not(service: Running) -> None:
    announced = b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
    with socket.create_connection(service.address) as raw:
        raw.sendall(announced)
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")

    def endless() -> Iterator[bytes]:
        for _ in range(api.MAX_BODY_BYTES // 1_000_000 + 1):
            yield b" " * 1_000_000

    try:
        reply = service.http.post("/v1/systemone", content=endless())
    except httpx.WriteError:  # the connection was closed before all was sent, as it may be
        pass
    else:
        assert reply.status_code == 413
    assert service.service._buffered == 0


@pytest.mark.parametrize(
    ("raised", "status", "error_type"),
    [
        (errors.EngineError("said: secret", next_step="x"), 503, "engine_error"),
        (errors.ReadoutError("said: secret", next_step="x"), 503, "engine_error"),
    ],
)
def test_the_engines_trouble_is_a_503_without_its_words(
    service: Running,
    raised: errors.OpenjevError,
    status: int,
    error_type: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service.engine.raises = raised
    reply = service.ask()
    assert (reply.status_code, reply.json()["detail"]["error_type"]) == (status, error_type)
    assert reply.headers["retry-after"] == "1"
    assert "secret" not in reply.text + caplog.text
    assert service.http.get("/health").status_code == 200  # it answers; this request it could not


def test_a_state_that_does_not_fit_is_a_422_with_the_numbers(service: Running) -> None:
    service.engine.raises = errors.InputError("needs 9 tokens, 8 are available", next_step="shorten it")
    reply = service.ask()
    assert reply.status_code == 422
    assert reply.json()["detail"] == [
        {"type": "value_error", "loc": ["body"], "msg": "needs 9 tokens, 8 are available"}
    ]


def test_an_image_for_a_model_that_sees_none_is_a_422_and_the_service_stays_well(service: Running) -> None:
    service.engine.raises = errors.SightError("tiny does not see images", next_step="ask another")
    reply = service.ask()
    assert (reply.status_code, reply.json()["detail"][0]["msg"]) == (422, "tiny does not see images")
    assert service.http.get("/health").status_code == 200
    assert len(service.engine.asked) == 1  # no question had to be asked to see whether it is well


def test_a_service_whose_engine_died_is_well_when_it_has_answered_and_not_when_it_was_asked_badly() -> None:
    with running() as service:
        service.engine.raises = errors.ServerError("died", next_step="look")
        assert service.ask().status_code == 503
        assert service.ask({}).status_code == 422
        assert service.http.get("/health").status_code == 503
        service.engine.raises = None
        assert service.http.get("/health").status_code == 200


def test_a_bug_is_a_500_that_repeats_nothing(service: Running, caplog: pytest.LogCaptureFixture) -> None:
    def fail(n: int) -> list[float]:
        raise LookupError("secret")

    service.engine.distribution = fail
    reply = service.ask()
    assert (reply.status_code, reply.json()["detail"]["error_type"]) == (500, "internal_error")
    assert "secret" not in reply.text + caplog.text
    assert "LookupError at " in caplog.text
    assert "test_serve.py" in caplog.text


# Admission


def test_when_all_places_are_taken_the_next_is_told_when_to_come_back() -> None:
    with running(workers=1, queue=1) as service:
        service.engine.may_answer.clear()
        first, first_replies = service.ask_later()
        until(lambda: len(service.engine.asked) == 1)
        second, second_replies = service.ask_later()
        until(lambda: service.gate.waiting == 1)
        reply = service.ask()
        assert reply.status_code == 529
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["detail"]["error_type"] == "overloaded_error"
        assert reply.json()["timing"] == stages_of(reply)
        assert service.http.get("/health").json()["waiting"] == 1
        service.engine.may_answer.set()
        first.join(10.0)
        second.join(10.0)
        (one,), (two,) = first_replies, second_replies
        assert (one.status_code, two.status_code) == (200, 200)
        assert two.json()["timing"]["queue_ms"] > 1.0


def test_requests_are_answered_side_by_side(service: Running) -> None:
    service.engine.may_answer.clear()
    asking = [service.ask_later() for _ in range(2)]
    until(lambda: len(service.engine.asked) == 2)
    service.engine.may_answer.set()
    for thread, replies in asking:
        thread.join(10.0)
        assert replies[0].status_code == 200


def test_a_client_that_leaves_frees_its_place() -> None:
    with running(workers=1, queue=1) as service:
        service.engine.may_answer.clear()
        content = json.dumps(BODY).encode()
        head = b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content)
        at_work = socket.create_connection(service.address)
        at_work.sendall(head + content)
        until(lambda: service.gate.at_work == 1)
        waiting = socket.create_connection(service.address)
        waiting.sendall(head + content)
        until(lambda: service.gate.waiting == 1)
        waiting.close()
        until(lambda: service.gate.waiting == 0)
        at_work.close()
        until(lambda: service.gate.at_work == 0)
        assert len(service.engine.cancelled) == 1  # the other one was never begun
        service.engine.may_answer.set()
        assert service.ask().status_code == 200


def test_a_request_that_takes_too_long_is_given_up() -> None:
    with running(workers=1, queue=1, request_timeout_s="1s") as service:
        service.engine.may_answer.clear()
        first, first_replies = service.ask_later()
        until(lambda: service.gate.at_work == 1)
        reply = service.ask()  # its time goes by in the queue
        assert reply.status_code in (200, 504)
        first.join(10.0)
        assert first_replies[0].status_code == 504
        detail = first_replies[0].json()["detail"]
        assert detail == {"error_type": "timeout_error", "message": "no answer within 1 s, waiting included"}
        until(lambda: service.gate.at_work == 0)
        assert service.gate.waiting == 0


def test_a_client_that_sends_its_body_slowly_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 0.3)
    with running(workers=1, queue=0) as service, socket.create_connection(service.address) as slow:
        slow.sendall(b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert service.ask().status_code == 200
        slow.settimeout(10.0)
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        assert service.service._buffered == 0


def test_a_client_that_never_ends_its_head_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HEAD_TIMEOUT_S", 0.3)
    with running() as service, socket.create_connection(service.address) as slow:
        slow.settimeout(10.0)
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reply = b""
        while not reply.endswith(b"}}"):
            reply += slow.recv(10_000)
        assert reply.startswith(b"HTTP/1.1 200 OK")
        slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert slow.recv(100) == b""


def test_bodies_that_are_too_much_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_BUFFERED_BYTES", 1000)
    with running() as service, socket.create_connection(service.address) as other:
        other.sendall(b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 990\r\n\r\n")
        other.sendall(b" " * 980)
        until(lambda: service.service._buffered == 980)
        reply = service.ask()
        assert (reply.status_code, reply.headers["retry-after"]) == (529, "1")
        other.close()
        until(lambda: service.service._buffered == 0)
        assert service.ask().status_code == 200


# Start, trouble and end


def test_before_the_model_answers_questions_are_refused_for_now() -> None:
    with running(opened=False) as service:
        for reply in (service.ask(), service.http.get("/health")):
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "1"
            assert reply.json()["detail"]["message"] == "the model is still loading"
        assert service.http.get("/health/live").status_code == 200


def test_a_drain_answers_what_was_accepted() -> None:
    with running(workers=1, queue=2) as service:
        service.engine.may_answer.clear()
        asking = [service.ask_later() for _ in range(3)]
        until(lambda: service.gate.waiting == 2)
        # Leaving the block stops the listener, then lets the engine answer.
    for thread, replies in asking:
        thread.join(10.0)
        assert replies[0].status_code == 200
