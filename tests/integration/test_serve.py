"""`openjev serve` on the real engine: conformance, the official client, the handed cases, its life."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import typesafe_sdk as sdk
from jevcompat import runner

from tests.conftest import Command
from tests.integration import fuzz

CASES = Path(__file__).resolve().parent.parent / "cases"
KEY = "key-of-the-tests"
PHOTO = CASES / "C01_plain.png"
BODY = {"state": "I paid twice.", "questions": {"q": {"type": "noul", "instructions": "Refund?"}}}


@dataclass
class Service:
    """A running `openjev serve`. log: what it wrote to stderr."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, body: object, **more: Any) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=60.0) as http:
            return http.post(f"{self.url}/v1/systemone", json=body, **more)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60.0)


@contextmanager
def serving(environment: Mapping[str, str], folder: Path, *arguments: str | Path) -> Iterator[Service]:
    log = folder / f"serve-{len(list(folder.iterdir()))}.log"
    argv = [sys.executable, "-m", "openjev_cli", "serve", *(str(one) for one in arguments)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            argv, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline().decode()
        assert ready.startswith("ready: "), log.read_text()
        yield Service(ready.split(" at ")[1].split()[0], process, log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, llama_server: Path, runtime_dir: Path
) -> dict[str, str]:
    home = tmp_path_factory.mktemp("serve-home")
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime_dir),
        "OPENJEV_LLAMA_SERVER": str(llama_server),
        "OPENJEV_CACHE_DIR": str(home / "cache"),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def service(
    environment: dict[str, str], folder: Path, tiny_hybrid: Path, tiny_projector: Path
) -> Iterator[Service]:
    """One service for most tests, without a key; the model sees."""
    arguments = ("--model", tiny_hybrid, "--mmproj", tiny_projector, "--port", "0")
    with serving(environment, folder, *arguments) as found:
        yield found
        assert found.end() == 0
        assert "bug" not in found.log.read_text()


@pytest.fixture(scope="module")
def locked(
    environment: dict[str, str], folder: Path, tiny_hybrid: Path, tiny_projector: Path
) -> Iterator[Service]:
    """The same with a key."""
    arguments = ("--model", tiny_hybrid, "--mmproj", tiny_projector, "--port", "0")
    with serving({**environment, "OPENJEV_API_KEY": KEY}, folder, *arguments) as found:
        yield found


# The public conformance suite


@pytest.mark.slow
def test_jevcompat_finds_every_must_and_every_should_but_the_name_of_timing(
    service: Service, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    run = subprocess.run(
        [Path(sys.executable).with_name("jevcompat"), "test", service.url, "--json", report],
        capture_output=True,
        text=True,
        timeout=500,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(report.read_text())
    assert found["summary"]["verdict"] == "conformant"
    failed = {one["id"] for one in found["results"] if one["status"] == "fail"}
    assert failed == {"response.extensions"}
    # What needs a key is tried below.
    untried = {one["id"] for one in found["results"] if one["status"] == "skip"}
    assert untried == {"auth.bearer", "auth.missing", "auth.invalid"}


def test_jevcompat_finds_every_requirement_of_a_key(locked: Service) -> None:
    found = runner.run(locked.url, key=KEY, only={"auth"})
    status = {one.id: one.status for one in found.results if one.id.startswith("auth.")}
    assert status == {
        "auth.ignored-when-off": "skip",  # there is a key
        "auth.bearer": "pass",
        "auth.missing": "pass",
        "auth.invalid": "pass",
    }


# The official client

QUESTIONS: dict[str, Any] = {
    "refund": sdk.Noul(instructions="Is money wanted back?", criteria={"true": "yes, it is"}),
    "team": sdk.Choice(instructions={"task": "Route it."}, criteria={"billing": "payments", "tech": None}),
    "anger": sdk.Score(instructions="How cross?", criteria=[{"label": "calm"}, "cross", ["furious"]]),
}


def check(result: sdk.SystemOneResponse) -> None:
    assert result.model == "tiny-hybrid"
    assert 0.0 <= result.nouls["refund"].noul <= 1.0
    team = result.choices["team"]
    assert team.choice in ("billing", "tech")
    assert sum(team.probabilities.values()) == pytest.approx(1.0)
    anger = result.scores["anger"]
    assert anger.legend == {0: {"label": "calm"}, 1: "cross", 2: ["furious"]}
    assert anger.score == pytest.approx(sum(level * p for level, p in anger.probabilities.items()))
    assert result.usage.input_tokens is not None
    assert result.usage.input_tokens > 50
    assert result.usage.output_tokens == 3


def test_the_official_client_asks_all_kinds_of_questions(service: Service) -> None:
    with sdk.TypeSafeClient(api_key="any", base_url=service.url, timeout=60.0) as client:
        check(client.system_one(state="I paid twice.", questions=QUESTIONS))
        check(client.system_one(state={"mail": "I paid twice." * 200}, questions=QUESTIONS))  # packed
        names = [model.name for model in client.models.list().models]
        assert names == ["jev-latest", "openjev-latest", "tiny-hybrid"]


def test_the_official_client_sends_images(service: Service) -> None:
    photo = sdk.Image(PHOTO)
    question = {"q": sdk.Noul(instructions="Is it red?")}
    with sdk.TypeSafeClient(api_key="any", base_url=service.url, timeout=60.0) as client:
        alone = client.system_one(state=photo, questions=question)
        inside = client.system_one(state={"photo": photo, "n": [1]}, questions=question)
        with client.attach_assets(photo):
            attached = client.system_one(state=f"See {photo}.", questions=question)
        asked_of = client.system_one(
            state="a chair", questions={"q": sdk.Noul(instructions=["Is it", photo])}, assets={"p": photo}
        )
    for result in (alone, inside, attached, asked_of):
        assert 0.0 <= result.nouls["q"].noul <= 1.0
        assert (result.usage.input_tokens or 0) > 40
    # The same as the picture in `images`, which the command line sends too.
    url = "data:image/png;base64," + base64.b64encode(PHOTO.read_bytes()).decode()
    body = {"state": "", "images": [url], "questions": {"q": {"type": "noul", "instructions": "Is it red?"}}}
    direct = service.ask(body).json()["answers"]["q"]["noul"]
    assert alone.nouls["q"].noul == pytest.approx(direct, abs=1e-5)


def test_the_official_client_asks_without_blocking(service: Service) -> None:
    async def ask() -> None:
        async with sdk.AsyncTypeSafeClient(api_key="any", base_url=service.url, timeout=60.0) as client:
            both = await asyncio.gather(
                client.system_one(state="I paid twice.", questions=QUESTIONS),
                client.system_one(state=sdk.Image(PHOTO), questions=QUESTIONS),
            )
        for result in both:
            check(result)

    asyncio.run(ask())


def test_the_official_client_understands_refusals(locked: Service) -> None:
    with (
        sdk.TypeSafeClient(api_key="wrong", base_url=locked.url) as client,
        pytest.raises(sdk.TypeSafeAuthenticationError, match="the API key is wrong"),
    ):
        client.system_one(state="x", questions=QUESTIONS)
    with (
        sdk.TypeSafeClient(api_key=KEY, base_url=locked.url) as client,
        pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="1 option: 2 to 255 are allowed") as raised,
    ):
        client.system_one(state="x", questions={"q": {"type": "choice", "criteria": {"one": None}}})
    assert raised.value.request_id is not None


# The handed cases


def test_g04_every_shape_of_criteria_and_instructions_is_answered(service: Service) -> None:
    body = json.loads((CASES / "G04_body.json").read_text())
    reply = service.ask(body)
    assert reply.status_code == 200
    answers = reply.json()["answers"]
    assert list(answers) == list(body["questions"])
    assert [one["type"] for one in answers.values()] == [q["type"] for q in body["questions"].values()]
    assert answers["object_levels"]["legend"] == {
        "0": {"label": "calm"},
        "1": {"label": "cross"},
        "2": "furious",
    }


def test_g06_ids_order_and_company_do_not_move_answers(service: Service) -> None:
    first, second = (json.loads((CASES / f"G06_{one}.json").read_text()) for one in "ab")
    same = {"refund": "x_y", "team": "zz \U0001f642.1"}
    for _ in range(10):
        a, b = service.ask(first).json()["answers"], service.ask(second).json()["answers"]
        assert list(a) == list(first["questions"])
        assert list(b) == list(second["questions"])
        for one, other in same.items():
            assert _values(a[one]) == pytest.approx(_values(b[other]), abs=0.03)
    for body, answers in ((first, a), (second, b)):
        for id, question in body["questions"].items():
            alone = service.ask({**body, "questions": {id: question}}).json()["answers"]
            assert _values(alone[id]) == pytest.approx(_values(answers[id]), abs=0.03)


def _values(answer: dict[str, Any]) -> list[float]:
    found = answer.get("probabilities")
    return list(found.values()) if found else [answer["noul"]]


# The same answers as the command line


def test_http_and_the_command_line_give_the_same(service: Service, openjev: Command) -> None:
    body = json.loads((CASES / "G06_a.json").read_text())
    over_http = service.ask(body).json()
    run = openjev("ask", "--text", body["state"], "-q", CASES / "G06_a.json", "-f", "json")
    asked = json.loads(run.stdout)
    assert asked["usage"] == over_http["usage"]
    for id, answer in over_http["answers"].items():
        assert _values(answer) == pytest.approx(_values(asked["answers"][id]), abs=1e-5)
    assert asked["timing"].keys() - {"start_ms"} == over_http["timing"].keys()


# What nobody should send


@pytest.mark.slow
def test_2000_odd_bodies_never_end_in_a_5xx_a_hang_or_a_leak(service: Service) -> None:
    bad: list[str] = []
    counts: dict[int, int] = {}

    def send(share: int) -> None:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=60.0) as http:
            for number in range(share, 2000, 4):
                body, headers = fuzz.body(number)
                reply = http.post("/v1/systemone", content=body, headers=headers)
                counts[reply.status_code] = counts.get(reply.status_code, 0) + 1
                is_leak = reply.status_code != 200 and fuzz.leaks(reply.content)
                if reply.status_code >= 500 or is_leak:
                    bad.append(f"{number}: {reply.status_code} {reply.text[:300]}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    assert bad == []
    assert fuzz.MARK not in service.log.read_text()
    assert sum(counts.values()) == 2000
    # Neither all refused nor all answered: the bodies are near what is right.
    assert counts[200] > 50
    assert counts[422] > 500
    assert service.ask(BODY).status_code == 200


def test_many_clients_get_right_answers_or_a_529(
    environment: dict[str, str], folder: Path, tiny_hybrid: Path
) -> None:
    with serving(environment, folder, "--model", tiny_hybrid, "--port", "0", "--queue", "2") as small:
        bodies = [{**BODY, "state": f"Ticket {n}: I paid {n} times."} for n in range(4)]
        right = [small.ask(body).json()["answers"] for body in bodies]

        def ask(n: int) -> tuple[int, bool]:
            reply = small.ask(bodies[n % 4])
            if reply.status_code != 200:
                return reply.status_code, int(reply.headers["retry-after"]) >= 1
            answer = reply.json()["answers"]["q"]["noul"]
            return 200, abs(answer - right[n % 4]["q"]["noul"]) < 1e-3

        with ThreadPoolExecutor(24) as clients:
            results = list(clients.map(ask, range(72)))
    assert {status for status, _ in results} == {200, 529}
    assert [result for result in results if not result[1]] == []


# Life


def test_sigterm_answers_what_was_accepted_and_ends_with_0(
    environment: dict[str, str], folder: Path, tiny_hybrid: Path
) -> None:
    with serving(environment, folder, "--model", tiny_hybrid, "--port", "0") as found:
        replies: list[httpx.Response] = []
        body = {**BODY, "state": "word " * 3000}
        asking = threading.Thread(target=lambda: replies.append(found.ask(body)))
        asking.start()
        with httpx.Client(trust_env=False) as http:
            while http.get(f"{found.url}/health").json()["at_work"] == 0:
                asking.join(0.01)
                assert asking.is_alive(), "it was answered before it could be seen at work"
        assert found.end() == 0
        asking.join(60.0)
        assert [reply.status_code for reply in replies] == [200]
        with pytest.raises(httpx.ConnectError):
            found.ask(BODY)


def test_an_image_for_a_model_that_sees_none_is_refused_and_the_next_request_answered(
    environment: dict[str, str], folder: Path, tiny_hybrid: Path
) -> None:
    with serving(environment, folder, "--model", tiny_hybrid, "--port", "0") as found:
        url = "data:image/png;base64," + base64.b64encode(PHOTO.read_bytes()).decode()
        refused = found.ask({**BODY, "images": [url]})
        assert refused.status_code == 422, refused.text
        assert "does not see images" in refused.json()["detail"][0]["msg"]
        assert found.ask(BODY).status_code == 200
        assert found.end() == 0


def test_ctrl_c_ends_with_130(environment: dict[str, str], folder: Path, tiny_hybrid: Path) -> None:
    with serving(environment, folder, "--model", tiny_hybrid, "--port", "0") as found:
        assert found.end(signal.SIGINT) == 130


def test_a_socket_serves_and_is_removed_at_the_end(
    environment: dict[str, str], runtime_dir: Path, folder: Path, tiny_hybrid: Path
) -> None:
    path = runtime_dir / "serve.sock"
    with serving(environment, folder, "--model", tiny_hybrid, "--socket", path) as found:
        assert found.url == str(path)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60.0) as http:
            assert http.post("http://any.name/v1/systemone", json=BODY).status_code == 200
        assert found.end() == 0
    assert not path.exists()


def test_a_taken_port_is_an_error_that_names_who_has_it(offline: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = offline("serve", "--port", str(port))
    assert (run.returncode, run.stdout) == (2, b"")
    assert f"error: port {port} on 127.0.0.1 is in use by pid {os.getpid()} (" in run.stderr.decode()
    assert run.stderr.decode().endswith("next: choose another with --port\n")


def test_without_a_key_only_loopback_is_bound(offline: Command) -> None:
    run = offline("serve", "--host", "0.0.0.0")
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.decode() == (
        "error: --host 0.0.0.0: without a key only this machine may ask\n"
        "next: set OPENJEV_API_KEY, or leave --host out\n"
    )


def test_an_engine_that_cannot_start_ends_the_service_with_its_error(
    offline: Command, tiny_hybrid: Path
) -> None:
    run = offline("serve", "--port", "0", "--model", tiny_hybrid)
    assert (run.returncode, run.stdout) == (4, b"")
    assert run.stderr.decode().startswith("error: ")
    assert "/nonexistent/llama-server" in run.stderr.decode()


def test_without_the_extra_it_says_how_to_get_it(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['uvicorn'] = None\n")
    run = offline("serve", env={"PYTHONPATH": str(tmp_path)})
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.decode() == (
        "error: openjev serve needs uvicorn, which is not installed\nnext: pip install 'openjev-cli[serve]'\n"
    )


def test_its_help_names_every_option(offline: Command) -> None:
    run = offline("serve", "--help")
    assert run.returncode == 0
    for option in ("--host", "--port", "--socket", "--queue", "--request-timeout", "--profile", "--connect"):
        assert option in run.stdout.decode()
