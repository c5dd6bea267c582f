"""The use case: one request in, one decision out. The command line, streams, answer sets and HTTP call it.

A `Session` knows which engine answers. It finds or starts the server, keeps what was learnt about it, frames
the prompt, has it read, and turns the readings into typed answers. It prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openjev_cli import answers, errors, labels, models, orders, profiles, prompt, record, runtime, server
from openjev_cli import state as states
from openjev_cli.config import Config
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client, Connect
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.protocol import Caching, Evaluation, Progress, Reading, Readout
from openjev_cli.questions import Question
from openjev_cli.request import Request
from openjev_cli.timing import Stages

if TYPE_CHECKING:
    from openjev_cli.cache import AnswerCache
    from openjev_cli.calibration import Calibration, MadeFor
    from openjev_cli.endpoint import Endpoint
    from openjev_cli.provenance import Provenance

# Called with one line about a long step (a download, a model that loads).
Report = Callable[[str], None]
LOW_LABEL_MASS = 0.5
# Requests that a Jev endpoint is asked at once: how many it takes is not known.
_API_SLOTS = 8
# In a stream every request teaches a little; the file about the server is written this often at most.
_SAVE_EVERY_S = 1.0


@dataclass(frozen=True)
class Engine:
    """What can be asked. model: its name in answers. memory: where facts about it are kept, or None. notices:
    lines for stderr. running: the managed server behind it, or None. endpoint: what `--connect` named, or
    None. api: the path at which it makes its own prompts (a Jev endpoint, a native decision model), or None.
    native: which kind of native decision model it is, None for none or when that is not known."""

    connect: Connect
    model: str
    memory: Path | None
    notices: tuple[str, ...] = ()
    running: record.Running | None = None
    endpoint: Endpoint | None = None
    api: str | None = None
    native: str | None = None


class Cancel:
    """Gives up one request from another thread: its `decide` raises `client.Cancelled` within moments, and
    the engine drops its work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self.is_set = False

    def set(self) -> None:
        """Give the request up, whatever it is doing; later calls do nothing."""
        with self._lock:
            self.is_set = True
            if self._client is not None:
                self._client.cancel()

    def attach(self, client: Client | None) -> None:
        """Say which connection the request is on; None when it is on none any more."""
        with self._lock:
            self._client = client
            if client is not None and self.is_set:
                client.cancel()


class Session:
    """Where the requests of one command go, from as many threads as it likes. Use it in a `with` block.

    config: the settings. environ: the process environment. report: told about long steps. reuse: where
    answers are kept across calls (`--reuse`), or None. explains: decisions say how they came about.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        report: Report | None = None,
        reuse: AnswerCache | None = None,
        explains: bool = False,
    ) -> None:
        self._config = config
        self._environ = environ
        self._report = report
        self._reuse = reuse
        self._explains = explains
        self._model: models.Model | None = None
        # One thread finds the server and learns about it; the others wait for what it found.
        self._lock = threading.RLock()
        self._current: Engine | None = None
        self._facts: Facts | None = None
        self._provenance: Provenance | None = None
        # What calibrates the answers of this engine, once it was looked for, and the notice about it.
        self._calibrated: tuple[Calibration | None, str | None] | None = None
        # Calibrations as they were first found: the file of --calibration, the stored files, and which of those
        # is for what answers.
        self._read: Calibration | None = None
        self._stored: tuple[Path, ...] | None = None
        self._found: dict[MadeFor, tuple[Calibration | None, str | None]] = {}
        self._idle: list[Client] = []
        self._saved_at_s = 0.0
        self._is_saved = True
        self._notices: tuple[str, ...] = ()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all idle connections, and keep what was learnt."""
        with self._lock:
            if self._current is not None and self._facts is not None and not self._is_saved:
                self._save(self._current, self._facts)
            self._forget(self._current)
        if self._reuse is not None:
            self._reuse.close()

    def slots(self) -> int:
        """Return how many requests are worth sending at once; finds or starts the engine.

        One where questions are read by /completion: there llama-server gains nothing from more, and b11434
        loses tasks (a slot that never ends, or an assert) when several clients resume prompts on a hybrid.
        """
        with self._lock:
            engine = self._engine(None)
            facts = self._known(engine)
            makes_prompts_itself = engine.api is not None
            return facts.n_slots if makes_prompts_itself or facts.abilities.get("decide") else 1

    def workers(self, n_questions: int) -> int:
        """Return how many requests of so many questions keep the slots busy, with one that waits for them."""
        slots = self.slots()
        return min(slots, slots // min(slots, n_questions) + 1)

    def provenance(self) -> Provenance:
        """Return what produces the answers of this session; finds or starts the engine."""
        with self._lock:
            engine = self._engine(None)
            known = self._known(engine)
            found = self._provenance_of(engine, known)
            applied = self._calibration(engine)
            return found.with_settings(calibration=applied.name) if applied is not None else found

    def model_key(self) -> str:
        """Return the name that calibrations of this session's model are stored under: its profile, or its file's."""
        with self._lock:
            model = self._resolved()
            return model.profile or model.path.stem

    def made_for(self) -> MadeFor:
        """Return what a calibration of this session's answers belongs to; finds or starts the engine.

        Raises InputError when the engine makes its own prompts: then nothing is known of its scores.
        """
        with self._lock:
            engine = self._engine(None)
            if engine.api is not None:
                raise errors.InputError(
                    f"{engine.model} makes its own prompts, and its answers cannot be calibrated here",
                    next_step="choose another model: openjev models list",
                )
            return self._made_for(engine)

    def decide(
        self,
        request: Request,
        stages: Stages,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> answers.Decision:
        """Return the answers to `request`. stages: the stopwatch of this request, finished here. cancel: how
        another thread may give it up.

        Raises InputError if the state does not fit, ModelError, ServerError, EngineError. A server that goes
        away before the first byte of a reply is started again once; then the request is asked again whole.
        """
        stages.enter("prepare")
        for is_last in (False, True):
            engine = None
            try:
                if request.state.all_images:
                    self._refuse_unseen()
                engine = self._engine(stages)
                return self._attempt(engine, request, stages, progress, cancel or Cancel())
            except (errors.ConnectionLost, runtime.Gone):
                self._forget(engine)
                if is_last or self._config.connect is not None:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _attempt(
        self,
        engine: Engine,
        request: Request,
        stages: Stages,
        progress: Progress | None,
        cancel: Cancel,
    ) -> answers.Decision:
        client = self._borrow(engine)
        cancel.attach(client)
        try:
            if engine.api is not None:
                _check_orders(engine, request)
                decision = self._ask_api(engine, engine.api, client, request, stages)
                cancel.attach(None)
                self._give_back(engine, client)
                return decision
            known = self._known(engine)
            _check_sight(engine, known, request)
            applied = self._calibration(engine)
            frame, state, facts, notices = self._frame(client, known, request.state)
            groups = orders.expand(request.questions, request.orders)
            read = [one.question for group in groups for one in group]
            offered = self._offered(read, facts)
            asked = prompt.build(frame, state, read, offered, facts.markup)
            evaluation, facts, reused = self._evaluate(engine, client, asked, facts, progress)
            if weight := self._plan().prior:
                evaluation, facts = self._correct(client, asked, read, evaluation, facts, weight)
            explanation: tuple[str, ...] = ()
            if self._explains:
                from openjev_cli.engine import explain

                names = orders.names(groups)
                explanation = self._why(engine) + explain.lines(client, asked, names, evaluation, facts)
            if facts != known:
                self._keep(engine, facts)
        except BaseException:
            # An answer may still be on its way to this connection.
            cancel.attach(None)
            client.close()
            raise
        cancel.attach(None)
        self._give_back(engine, client)
        decision = self._decision(engine, request, evaluation, stages, notices, reused, applied)
        if decision.calibration is not None and explanation:
            explanation += (f"calibration {decision.calibration}",)
        return replace(decision, explanation=explanation)

    def _why(self, engine: Engine) -> tuple[str, ...]:
        """Return the line that says which model answers, and why this one."""
        reason = self._model.reason if engine.running is not None and self._model is not None else ""
        return (f"model {engine.model}" + (f" ({reason})" if reason else ""),)

    def _ask_api(
        self, engine: Engine, path: str, client: Client, request: Request, stages: Stages
    ) -> answers.Decision:
        """Have a Jev endpoint or a native decision model answer: the prompt is its own business."""
        from openjev_cli.engine import systemone

        if engine.native is not None:
            systemone.check_native(client, request, engine.native)
        began_at_s = time.perf_counter()
        reply = systemone.ask(client, path, request, is_native=engine.native is not None)
        round_trip_ms = (time.perf_counter() - began_at_s) * 1000.0
        timing = stages.finish(
            queue_ms=reply.queue_ms,
            inference_ms=reply.inference_ms or max(0.0, round_trip_ms - reply.queue_ms),
        )
        with self._lock:
            about_engine, self._notices = self._notices, ()
        notices = (*about_engine, *request.state.notices)
        if isinstance(self._config.calibration, Path):
            notices += (
                f"the calibration {self._config.calibration} is not applied: prompts are made elsewhere",
            )
        model = engine.model if engine.running is not None else reply.model
        explanation = (*self._why(engine), "it makes its own prompt") if self._explains else ()
        return answers.Decision(
            model, reply.typed, reply.usage, timing, notices=notices, explanation=explanation
        )

    def _evaluate(
        self, engine: Engine, client: Client, asked: prompt.Prompt, facts: Facts, progress: Progress | None
    ) -> tuple[Evaluation, Facts, int | None]:
        """Have the prompt read, except for what the answer cache holds; the last value counts the latter."""
        readout = _readout(client, asked, facts)
        if self._reuse is None:
            return *readout.evaluate(asked, facts, self._caching(), progress), None
        keys = self._keys(engine, type(readout).__name__, asked, facts)
        readings = self._reuse.get(keys)
        missing = [i for i, reading in enumerate(readings) if reading is None]
        queue_ms = inference_ms = 0.0
        if missing:
            rest = replace(asked, suffixes=tuple(asked.suffixes[i] for i in missing))
            evaluation, facts = readout.evaluate(rest, facts, self._caching(), progress)
            queue_ms, inference_ms = evaluation.queue_ms, evaluation.inference_ms
            self._reuse.put({keys[i]: one for i, one in zip(missing, evaluation.readings, strict=True)})
            for i, one in zip(missing, evaluation.readings, strict=True):
                readings[i] = one
        found: Sequence[Reading] = [reading for reading in readings if reading is not None]
        return Evaluation(tuple(found), queue_ms, inference_ms, 0), facts, len(found) - len(missing)

    def _offered(self, asked: Sequence[Question], facts: Facts) -> tuple[labels.Label, ...] | None:
        """Return the labels of the readout `letters`, None for `words`."""
        if self._plan().kind == "words":
            return None
        longest = max(len(prompt.options_of(question)) for question in asked)
        return labels.take(facts.labels, longest)

    def _plan(self) -> profiles.Readout:
        """Return how options are read."""
        if self._config.connect is not None:
            return models.readout(self._config, None)
        with self._lock:
            return self._resolved().readout

    def _correct(
        self,
        client: Client,
        asked: prompt.Prompt,
        read: Sequence[Question],
        evaluation: Evaluation,
        facts: Facts,
        weight: float,
    ) -> tuple[Evaluation, Facts]:
        """Take from each score `weight` times what it is without a state. That is kept per question.

        Zhao et al. 2021 (contextual calibration); Holtzman et al. 2021 (domain-conditional PMI).
        """
        digests = [facts.digest_of(repr((suffix, prompt.NO_STATE)).encode()) for suffix in asked.suffixes]
        # Held apart: one request may have more of them than are remembered.
        known = dict(facts.priors)
        missing = [i for i, digest in enumerate(digests) if digest not in known]
        if missing:
            nothing = states.from_text(prompt.NO_STATE)
            frame, _ = facts_.frame_for(client, facts, nothing)
            questions = [read[i] for i in missing]
            bare = prompt.build(frame, nothing, questions, self._offered(questions, facts), facts.markup)
            alone, facts = _readout(client, bare, facts).evaluate(bare, facts, self._caching(), None)
            priors = {digests[i]: one.scores for i, one in zip(missing, alone.readings, strict=True)}
            known.update(priors)
            facts = facts.with_priors(priors)
            evaluation = replace(
                evaluation,
                queue_ms=evaluation.queue_ms + alone.queue_ms,
                inference_ms=evaluation.inference_ms + alone.inference_ms,
            )
        corrected = tuple(
            replace(one, scores=labels.without_prior(one.scores, known[digest], weight))
            for one, digest in zip(evaluation.readings, digests, strict=True)
        )
        return replace(evaluation, readings=corrected), facts

    def _keys(self, engine: Engine, readout: str, asked: prompt.Prompt, facts: Facts) -> list[bytes]:
        from openjev_cli import cache

        provenance = self._provenance_of(engine, facts).key()
        return [cache.key(provenance, readout, asked.prefix, suffix) for suffix in asked.suffixes]

    # ----------------------------------------------------------------------------------- which engine

    def _engine(self, stages: Stages | None) -> Engine:
        """Return the engine of this session. Waiting for it is charged to `start` if it had to be started."""
        if self._current is not None:
            return self._current
        with self._lock:
            if self._current is None:
                found = self._find_engine(stages)
                if found.api is not None:
                    found = self._without_ours(found)
                self._current = found
                self._notices += found.notices
            return self._current

    def _without_ours(self, engine: Engine) -> Engine:
        """Return an engine that makes its own prompts with notices of what the config files say for nothing.

        Raises InputError for what was said for this call, or this process.
        """
        given, notices = ["--reuse"] if self._reuse is not None else [], engine.notices
        for key, default in (("readout", profiles.LETTERS.kind), ("prior", profiles.LETTERS.prior)):
            value, source = getattr(self._config, key), self._config.sources[key]
            if value is not None and source.kind in ("flag", "environment"):
                given.append(source.name or key)
            elif value not in (None, default):
                notices += (f"the {key} {value} of {source.name} is not applied: prompts are made elsewhere",)
        if given:
            if engine.running is not None:
                engine.running.close()
            raise errors.collect(
                [f"{name}: {engine.model} makes its own prompts, and reads them itself" for name in given],
                next_step="leave that out, or choose another model: openjev models list",
            )
        return replace(engine, notices=notices)

    def _find_engine(self, stages: Stages | None) -> Engine:
        if self._config.connect is not None:
            return self._connected(self._config.connect)
        if isinstance(self._config.calibration, Path):
            self._read_calibration(self._config.calibration)  # before a server is started for nothing
        stages = stages or Stages(time.perf_counter())
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
        engine = Engine(running.connect, self._model.name, running.memory_path, notices, running)
        if native := running.facts.get("decision_type"):
            engine = replace(engine, api="/v1/systemone", native=str(native))
        return engine

    def _connected(self, address: str) -> Engine:
        from openjev_cli import endpoint

        key = self._config.api_key
        found = endpoint.parse(address, has_key=key is not None)
        api, is_native = found.api_path(key)
        # Of which kind it is nobody says.
        native = "unknown" if is_native else None
        return Engine(found.connect, address, None, found.notices, endpoint=found, api=api, native=native)

    def _client(self, engine: Engine) -> Client:
        if engine.endpoint is not None:
            return engine.endpoint.client(self._config.api_key)
        return Client(engine.connect)

    def _forget(self, engine: Engine | None) -> None:
        """Look for the engine anew at the next request, unless another thread has done so already."""
        with self._lock:
            if engine is not None and engine is self._current:
                self._current = self._facts = self._provenance = self._calibrated = None
                for client in self._idle:
                    client.close()
                self._idle.clear()
                if engine.running is not None:
                    engine.running.close()

    def _borrow(self, engine: Engine) -> Client:
        with self._lock:
            if engine is self._current and self._idle:
                return self._idle.pop()
        return self._client(engine)

    def _give_back(self, engine: Engine, client: Client) -> None:
        with self._lock:
            if engine is self._current and not client.is_cancelled:
                self._idle.append(client)
                return
        client.close()

    def _provenance_of(self, engine: Engine, facts: Facts) -> Provenance:
        from openjev_cli import provenance

        with self._lock:
            if self._provenance is None:
                config, plan = self._config, self._plan() if engine.api is None else None
                if engine.running is None or self._model is None:
                    self._provenance = provenance.of_connected(engine.model, config, plan, facts)
                else:
                    self._provenance = provenance.of_running(engine.running, self._model, config, plan, facts)
            return self._provenance

    def _made_for(self, engine: Engine) -> MadeFor:
        from openjev_cli import calibration, provenance

        # Not of the whole provenance, which asks the machine for more than this and takes milliseconds.
        plan = self._plan()
        known = self._model if engine.running is not None else None
        return calibration.MadeFor(
            engine.model,
            models.digest(known, self._config) if known is not None else None,
            plan.adapter.sha256 if plan.adapter else None,
            str(plan),
            provenance.wording(plan),
        )

    def _calibration(self, engine: Engine) -> Calibration | None:
        """Return what the answers of an engine are calibrated with; a notice says when one does not apply."""
        with self._lock:
            if self._calibrated is None or engine is not self._current:
                found = self._find_calibration(engine)
                if engine is not self._current:
                    return found[0]
                self._calibrated = found
                if found[1] is not None:
                    self._notices += (found[1],)
            return self._calibrated[0]

    def _find_calibration(self, engine: Engine) -> tuple[Calibration | None, str | None]:
        path = self._config.calibration
        if engine.api is not None:
            return None, None  # its scores are not seen
        stored: tuple[Path, ...] = ()
        if path is None and engine.running is not None:
            if self._stored is None:
                self._stored = self._config.calibration_files(self.model_key())
            stored = self._stored
        if not isinstance(path, Path) and not stored:
            return None, None
        from openjev_cli import calibration

        # A service outlives its engines, and what happens to the files meanwhile is no fault of its clients.
        now = self._made_for(engine)
        if isinstance(path, Path):
            return calibration.in_use(path, now, self._read_calibration(path))
        if now not in self._found:
            self._found[now] = calibration.stored_for(stored, now)
        return self._found[now]

    def _read_calibration(self, path: Path) -> Calibration:
        """Return what the file of `--calibration` held at the first call. Raises InputError."""
        if self._read is None:
            from openjev_cli import calibration

            self._read = calibration.read(path)
        return self._read

    def _refuse_unseen(self) -> None:
        """Raise SightError if the model of a managed server cannot see, before it is started for that."""
        with self._lock:
            if self._config.connect is None and self._resolved().mmproj is None:
                raise _sees_nothing(self._resolved().name)

    def _resolved(self) -> models.Model:
        if self._model is None:
            self._model = models.resolve(self._config, on_progress=self._report)
        return self._model

    def _running(self) -> record.Running:
        program = server.program_for(self._config, self._environ)
        spec = server.spec_for(self._config, self._resolved(), program)
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

    def _known(self, engine: Engine) -> Facts:
        """Return what is known of the engine; the first request of all learns it."""
        with self._lock:
            if self._facts is None or engine is not self._current:
                kept = engine.memory is not None and self._config.cache
                facts = facts_.load(engine.memory) if kept and engine.memory is not None else None
                if facts is None:
                    if engine.api is not None:
                        slots = engine.running.slots if engine.running is not None else _API_SLOTS
                        facts = facts_.nothing(n_slots=slots)
                    else:
                        with self._client(engine) as client:
                            facts = facts_.learn(client)
                    self._is_saved = False
                if engine is not self._current:
                    return facts
                self._facts = facts
            return self._facts

    def _keep(self, engine: Engine, facts: Facts) -> None:
        """Add what a request has learnt to what the session knows."""
        with self._lock:
            if engine is not self._current or self._facts is None:
                return
            self._facts = self._facts.merged_with(facts)
            self._is_saved = False
            if time.monotonic() - self._saved_at_s >= _SAVE_EVERY_S:
                self._save(engine, self._facts)

    def _save(self, engine: Engine, facts: Facts) -> None:
        if self._config.cache and engine.memory is not None:
            facts_.save(engine.memory, facts)
        self._saved_at_s, self._is_saved = time.monotonic(), True

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
        reused: int | None,
        applied: Calibration | None,
    ) -> answers.Decision:
        readings = evaluation.readings
        typed, scores, low = _together(request, readings, applied)
        if low:
            notices += (
                f"the model would rather have said something else than an answer label: {', '.join(low)}",
            )
        if turning := [one.id for one in typed if one.orders is not None and one.orders.flips]:
            notices += (f"the answer turns with the order of the options: {', '.join(turning)}",)
        usage = answers.Usage(
            input_tokens=sum(reading.n_tokens for reading in readings),
            output_tokens=len(readings),
            cached_tokens=sum(reading.cached for reading in readings),
        )
        timing = stages.finish(queue_ms=evaluation.queue_ms, inference_ms=evaluation.inference_ms)
        with self._lock:
            # What the engine's start had to say is said once.
            about_engine, self._notices = self._notices, ()
        shown = (*about_engine, *request.state.notices, *notices)
        return answers.Decision(
            engine.model,
            typed,
            usage,
            timing,
            notices=shown,
            reused=reused,
            calibration=applied.name if applied is not None and applied.touches(request.questions) else None,
            scores=scores,
        )


def _together(
    request: Request, readings: Sequence[Reading], applied: Calibration | None
) -> tuple[tuple[answers.Answer, ...], tuple[tuple[float, ...], ...], list[str]]:
    """Return the answers, their scores, and the ids of questions whose label mass is low. readings: of every
    order of every question."""
    typed: list[answers.Answer] = []
    scores: list[tuple[float, ...]] = []
    low: list[str] = []
    rest = iter(readings)
    groups = orders.expand(request.questions, request.orders)
    for question, group in zip(request.questions, groups, strict=True):
        read = [next(rest) for _ in group]
        given: list[Sequence[float]] = [one.scores for one in read]
        written = request.reversed_of.get(question.id)
        fit = applied.fit_of(written or question) if applied is not None else None
        if fit is not None:
            places = [order.places for order in group]
            if written is not None:
                places = [tuple(len(each) - 1 - place for place in each) for each in places]
            given = [fit.adjust(one, each) for one, each in zip(given, places, strict=True)]
        found = orders.combine(question, group, given)
        typed.append(answers.answer(question, labels.probabilities(found.scores), found.orders))
        scores.append(found.scores)
        if any(one.label_mass is not None and one.label_mass < LOW_LABEL_MASS for one in read):
            low.append(question.id)
    return tuple(typed), tuple(scores), low


def _readout(client: Client, asked: prompt.Prompt, facts: Facts) -> Readout:
    is_words = any(suffix.options for suffix in asked.suffixes)
    if facts.abilities.get("decide") and (facts.abilities.get("options") or not is_words):
        from openjev_cli.engine.patched import Patched

        return Patched(client)
    if asked.images and is_words:
        raise errors.InputError(
            "this llama-server cannot read options by their own text beside images",
            next_step="build ours: scripts/build-llama.sh; or read letters: --readout letters",
        )
    if asked.images:
        from openjev_cli.engine.stock_images import StockImages

        return StockImages(client)
    from openjev_cli.engine.stock import Stock

    return Stock(client)


def _check_sight(engine: Engine, facts: Facts, request: Request) -> None:
    if request.state.all_images and not facts.sees_images:
        raise _sees_nothing(engine.model)


def _check_orders(engine: Engine, request: Request) -> None:
    if request.orders > 1:
        raise errors.InputError(
            f"--orders: {engine.model} makes its own prompts, in an order of its own",
            next_step="leave --orders out, or choose another model: openjev models list",
        )


def _sees_nothing(model: str) -> errors.SightError:
    seeing = ", ".join(name for name, one in profiles.PROFILES.items() if one.projector is not None)
    return errors.SightError(
        f"{model} does not see images: it has no projector",
        next_step=f"ask a profile that sees ({seeing}): -p NAME; or give the projector: --mmproj FILE",
    )
