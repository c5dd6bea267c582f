"""The use case: one request in, one decision out. The command line, streams, answer sets and HTTP all call this.

A `Session` knows which engine answers. It finds or starts the server, keeps what was learnt about it, frames the
prompt, has it read, and turns the readings into typed answers. It prints nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from openjev_cli import answers, errors, labels, models, prompt, record, runtime, server
from openjev_cli import state as states
from openjev_cli.config import Config
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client, Connect
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.protocol import Caching, Evaluation, Progress, Readout
from openjev_cli.engine.stock import Stock
from openjev_cli.request import Request
from openjev_cli.timing import Stages

# Called with one line about a long step (a download, a model that loads).
Report = Callable[[str], None]
LOW_LABEL_MASS = 0.5


@dataclass(frozen=True)
class Engine:
    """A llama-server that can be asked. model: its name in answers. memory: where facts about it are kept, or
    None. was_started: this call waited for it. notices: lines for stderr."""

    connect: Connect
    model: str
    memory: Path | None
    was_started: bool = False
    notices: tuple[str, ...] = ()


class Session:
    """Where the requests of one command go. config: the settings. environ: the process environment."""

    def __init__(self, config: Config, environ: Mapping[str, str], report: Report | None = None) -> None:
        self._config = config
        self._environ = environ
        self._report = report
        self._model: models.Model | None = None

    def decide(self, request: Request, stages: Stages, progress: Progress | None = None) -> answers.Decision:
        """Return the answers to `request`. stages: the stopwatch of this request, finished here.

        Raises InputError if the state does not fit, ModelError, ServerError, EngineError. A server that goes
        away before the first byte of a reply is started again once; then the request is asked again whole.
        """
        stages.enter("prepare")
        try:
            return self._attempt(request, stages, progress)
        except (errors.ConnectionLost, runtime.Gone):
            if self._config.connect is not None:
                raise
            return self._attempt(request, stages, progress)

    def _attempt(self, request: Request, stages: Stages, progress: Progress | None) -> answers.Decision:
        engine = self._engine(stages)
        with Client(engine.connect) as client:
            known = self._known_facts(engine)
            facts = known or facts_.learn(client)
            frame, state, facts, notices = self._frame(client, facts, request.state)
            longest = max(len(prompt.options_of(question)) for question in request.questions)
            spellings = [label.text for label in labels.take(facts.labels, longest)]
            asked = prompt.build(frame, state, request.questions, spellings)
            evaluation, facts = _readout(client, facts).evaluate(asked, facts, self._caching(), progress)
            if facts != known and self._config.cache and engine.memory is not None:
                facts_.save(engine.memory, facts)
        return self._decision(engine, request, evaluation, stages, notices)

    # ----------------------------------------------------------------------------------- which engine

    def _engine(self, stages: Stages) -> Engine:
        if self._config.connect is not None:
            return connected(self._config.connect)
        stages.enter("start")
        running = self._running()
        stages.enter("prepare")
        if not running.was_started:
            stages.merge("start", into="prepare")
        assert self._model is not None
        notices = running.notices
        if self._model.notice is not None:
            notices += (self._model.notice,)
            models.notice_shown(self._model)
            self._model = replace(self._model, notice=None)
        return Engine(running.connect, self._model.name, running.memory_path, running.was_started, notices)

    def _running(self) -> record.Running:
        if self._model is None:
            self._model = models.resolve(self._config, on_progress=self._report)
        spec = server.spec_for(self._config, self._model, self._environ)
        running = server.ensure(spec, environ=self._environ, on_progress=self._report)
        if running.was_started and spec.binary.notice:
            running = replace(running, notices=(spec.binary.notice, *running.notices))
        return running

    def _caching(self) -> Caching:
        return Caching(
            prompts=self._config.cache,
            shared_prefix=self._config.cache and self._config.prime_shared_prefix,
            repeated_state=self._config.cache and self._config.prime_repeated_state,
        )

    # ------------------------------------------------------------------------------------- the prompt

    def _known_facts(self, engine: Engine) -> Facts | None:
        if engine.memory is None or not self._config.cache:
            return None
        return facts_.load(engine.memory)

    def _frame(
        self, client: Client, facts: Facts, state: states.State
    ) -> tuple[prompt.Frame, states.State, Facts, tuple[str, ...]]:
        """Return the frame, the state as it is framed, the facts after checking, and notices."""
        notices: tuple[str, ...] = ()
        used = facts if self._config.template_cache else replace(facts, skeleton=None)
        try:
            frame, is_local = facts_.frame_for(client, used, state)
        except facts_.TemplateRefusal:
            if state.kind != "chat":
                raise
            notices = ("the model's chat template refuses this conversation; it is asked about as JSON",)
            state = state.as_json()
            frame, is_local = facts_.frame_for(client, used, state)
        if is_local and facts.checked < facts_.CHECKED_RENDERINGS:
            if facts_.agrees(client, frame, state):
                facts = replace(facts, checked=facts.checked + 1)
            else:
                facts = replace(facts, skeleton=None)
                frame, _ = facts_.frame_for(client, facts, state)
        return frame, state, facts, notices

    # ------------------------------------------------------------------------------------ the answers

    def _decision(
        self,
        engine: Engine,
        request: Request,
        evaluation: Evaluation,
        stages: Stages,
        notices: tuple[str, ...],
    ) -> answers.Decision:
        readings = evaluation.readings
        typed = tuple(
            answers.answer(question, labels.probabilities(reading.scores))
            for question, reading in zip(request.questions, readings, strict=True)
        )
        low = [
            question.id
            for question, reading in zip(request.questions, readings, strict=True)
            if reading.label_mass is not None and reading.label_mass < LOW_LABEL_MASS
        ]
        if low:
            notices += (
                f"the model would rather have said something else than an answer label: {', '.join(low)}",
            )
        usage = answers.Usage(
            input_tokens=sum(reading.n_tokens for reading in readings),
            output_tokens=len(readings),
            cached_tokens=sum(reading.cached for reading in readings),
        )
        timing = stages.finish(queue_ms=evaluation.queue_ms, inference_ms=evaluation.inference_ms)
        shown = (*engine.notices, *request.state.notices, *notices)
        return answers.Decision(engine.model, typed, usage, timing, notices=shown)


def _readout(client: Client, facts: Facts) -> Readout:
    return Stock(client)


def connected(address: str) -> Engine:
    """Return the engine at `address`: http://HOST:PORT, or the path of a Unix socket. Nothing is kept about
    it, since nothing tells whether it is still the same server.

    Raises InputError for anything else.
    """
    if address.startswith("http://"):
        from urllib.parse import urlsplit

        parts = urlsplit(address)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.hostname and port and parts.path in ("", "/") and not parts.query:
            host = parts.hostname

            def open_tcp() -> socket.socket:
                try:
                    return socket.create_connection((host, port), timeout=10.0)
                except OSError as exc:
                    raise _unreachable(address, exc) from exc

            is_local = host in ("localhost", "::1") or host.startswith("127.")
            notice = () if is_local else (f"the state and questions leave this machine for {host}",)
            return Engine(open_tcp, address, None, notices=notice)
    elif "://" not in address:

        def open_unix() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(address)
            except OSError as exc:
                connection.close()
                raise _unreachable(address, exc) from exc
            return connection

        return Engine(open_unix, address, None)
    raise errors.InputError(
        f"--connect {address}: not an address of a llama-server",
        next_step="write http://HOST:PORT, or the path of a Unix socket",
    )


def _unreachable(address: str, exc: OSError) -> errors.EngineError:
    return errors.EngineError(
        f"nothing answers at {address}: {exc.strerror or exc}",
        next_step="start a llama-server there, or leave --connect out to use the managed one",
    )
