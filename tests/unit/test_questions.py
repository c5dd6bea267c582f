"""Question lists: the text grammar, the JSON and YAML forms, the wire shapes, and every error at once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from openjev_cli import errors, questions, reading
from openjev_cli.questions import Choice, Level, Noul, Option, Question, Score, Source

CASES = Path(__file__).parent.parent / "cases"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def one(line: str) -> Question:
    (question,) = questions.load([questions.inline(line)])
    return question


def problems(*sources: Source) -> tuple[str, ...]:
    with pytest.raises(errors.InputError) as caught:
        questions.load(sources)
    return caught.value.problems


def file(name: str, text: str) -> Source:
    return Source(name, text.encode())


def case(name: str) -> tuple[Question, ...]:
    return questions.load([Source(name, (CASES / name).read_bytes())])


def names(*options: str) -> tuple[Option, ...]:
    return tuple(Option(name) for name in options)


@pytest.mark.parametrize(
    ("line", "question"),
    [
        # The table of the design, row by row.
        ("What time is it? 12:30", Noul("q1", "What time is it? 12:30")),
        ("https://x.io/a is phishing?", Noul("q1", "https://x.io/a is phishing?")),
        ("a: b: c [x | y]", Choice("a", "b: c", names("x", "y"))),
        ("Is list[0] empty?", Noul("q1", "Is list[0] empty?")),
        ("Is issue #12 fixed?", Noul("q1", "Is issue #12 fixed?")),
        (
            "p? [cheap: under <100 | dear: over 100]",
            Choice("q1", "p?", (Option("cheap", "under <100"), Option("dear", "over 100"))),
        ),
        ("t? [12:30 | 13:00]", Choice("q1", "t?", names("12:30", "13:00"))),
        # The example list.
        (
            "refund: Does the customer ask for a refund?",
            Noul("refund", "Does the customer ask for a refund?"),
        ),
        (
            "team: Which team? [billing: Payments and refunds | technical: Bugs | sales | other]",
            Choice(
                "team",
                "Which team?",
                (
                    Option("billing", "Payments and refunds"),
                    Option("technical", "Bugs"),
                    *names("sales", "other"),
                ),
            ),
        ),
        (
            "urgency: How urgent? [Routine < This week < Blocked right now]",
            Score(
                "urgency",
                "How urgent?",
                tuple(Level(name, name) for name in ("Routine", "This week", "Blocked right now")),
            ),
        ),
        # Yes and no are a noul with criteria, in any case and order.
        ("p? [yes: Ads | no: Real]", Noul("q1", "p?", yes="Ads", no="Real")),
        ("p? [NO: Real | Yes]", Noul("q1", "p?", no="Real")),
        ("p? [no < yes]", Score("q1", "p?", (Level("no", "no"), Level("yes", "yes")))),
        ("p? [yes | no | maybe]", Choice("q1", "p?", names("yes", "no", "maybe"))),
        # Escapes; any other backslash stays.
        (r"Is it \[a | b\]", Noul("q1", "Is it [a | b]")),
        (r"\# first [a\|b | c\: d | e\\ | f\]]", Choice("q1", "# first", names("a|b", "c: d", "e\\", "f]"))),
        (r"a\: b", Noul("q1", "a: b")),
        (r"Is C:\new there?", Noul("q1", r"Is C:\new there?")),
        (r"p? [a \< b < c]", Score("q1", "p?", (Level("a < b", "a < b"), Level("c", "c")))),
        ("ends in \\", Noul("q1", "ends in \\")),
        # Separators.
        ("p? [low < high | x]", Choice("q1", "p?", names("low < high", "x"))),
        ("p? [<5 < 5<x<9 < >9]", Score("q1", "p?", tuple(Level(n, n) for n in ("<5", "5<x<9", ">9")))),
        ("p? [a <b < c> d]", Score("q1", "p?", (Level("a <b", "a <b"), Level("c> d", "c> d")))),
        ("p? [a [x] | b]", Choice("q1", "p?", names("a [x]", "b"))),
        ("p?[a|b:c]", Choice("q1", "p?", names("a", "b:c"))),
        ("p? [a: b: c | d]", Choice("q1", "p?", (Option("a", "b: c"), Option("d")))),
        ("Is [ open?", Noul("q1", "Is [ open?")),
        ("Is a || b < c?", Noul("q1", "Is a || b < c?")),
        ("Is f[a | b]\\] it?".replace("[", "\\["), Noul("q1", "Is f[a | b]] it?")),
        # Ids.
        ("日本: これは [はい | いいえ]", Choice("日本", "これは", names("はい", "いいえ"))),
        ("हिन्दी: क्या?", Noul("हिन्दी", "क्या?")),
        ("_a.b-1:\tIs it?", Noul("_a.b-1", "Is it?")),
        ("1a: Is it?", Noul("q1", "1a: Is it?")),
        ("a" * 64 + ": x", Noul("a" * 64, "x")),
        ("  spaced : Is it?  ", Noul("q1", "spaced : Is it?")),
        # Control characters are shown, but an option's name is a key and stays exact.
        ("p\x00? [a\x1b: b\x07 | c]", Choice("q1", "p\\u0000?", (Option("a\x1b", "b\\u0007"), Option("c")))),
    ],
)
def test_line_reads_as(line: str, question: Question) -> None:
    assert one(line) == question


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("Which [a | b] is it?", "7: options come last on the line (\\[ keeps a bracket as text)"),
        ("x? [a | b]?", "4: options come last on the line (\\[ keeps a bracket as text)"),
        ("x [a | b] y? [c | d]", "3: options come last on the line (\\[ keeps a bracket as text)"),
        ("p? [a<b<c]", "5: put spaces round < to order levels, as in [low < high]"),
        ("p? [a]", "5: only one option: separate options with |, levels with < in spaces"),
        ("p? list[0]", "9: only one option: separate options with |, levels with < in spaces"),
        ("p? [ ]", "5: no options between [ and ] (\\[ keeps a bracket as text)"),
        ("p? []", "5: no options between [ and ] (\\[ keeps a bracket as text)"),
        ("p? [a | ]", "8: an option without a name"),
        ("p? [ | a]", "6: an option without a name"),
        ("p? [: x | b]", "5: an option without a name"),
        ("p? [a: | b]", "5: the description is missing behind a:"),
        ("p? [low < < high]", "11: a level without a name"),
        ("p? [a | b |  A ]", "14: the option A is there twice"),
        ("p? [é | e\u0301]", "9: the option e\u0301 is there twice"),
        ("p? [straße | STRASSE]", "14: the option STRASSE is there twice"),
        ("p? [a < b < A]", "13: the level A is there twice"),
        ("p? [a | b", "4: this [ has no ] (\\[ keeps it as text)"),
        ("p? [a < b", "4: this [ has no ] (\\[ keeps it as text)"),
        ("p? a | b]", "9: this ] has no [ (\\] keeps it as text)"),
        ("p? [a | [b | c]]", "12: | inside inner brackets: write \\| or \\[ there"),
        ("p? [a < [b < c]]", "12: < inside inner brackets: write \\< or \\[ there"),
        ("refund:", "8: the question is empty"),
        ("[a | b]", "1: the question is empty"),
        ("id: [a | b]", "5: the question is empty"),
        ("a" * 65 + ": x", "1: the id has 65 characters, at most 64 are allowed"),
    ],
)
def test_line_is_refused_at_its_column(line: str, problem: str) -> None:
    assert problems(questions.inline(line)) == (f"-Q:1:{problem}",)


@pytest.mark.parametrize(("count", "separator"), [(255, " | "), (64, " < ")])
def test_the_largest_groups_are_read_and_one_more_is_refused(count: int, separator: str) -> None:
    question = one(f"p? [{separator.join(map(str, range(count)))}]")
    assert len(question.options if isinstance(question, Choice) else question.levels) == count  # type: ignore[union-attr]
    (problem,) = problems(questions.inline(f"p? [{separator.join(map(str, range(count + 1)))}]"))
    assert problem.endswith(
        f"{count + 1} {'options' if count == 255 else 'levels'}: at most {count} are allowed"
    )


def test_comments_and_blank_lines_are_skipped_and_ids_count_questions() -> None:
    text = "# a comment\n\n  \t\nfirst?\r\nteam: second?\n # no comment?\n"
    assert questions.load([file("q.txt", text), questions.inline("fourth?")]) == (
        Noul("q1", "first?"),
        Noul("team", "second?"),
        Noul("q3", "# no comment?"),
        Noul("q4", "fourth?"),
    )


def test_all_errors_of_all_sources_are_reported_at_once() -> None:
    assert problems(
        file("a.txt", "a: x?\nWhich [a | b] is it?\na: y?\n"),
        questions.inline("p? [a]"),
        questions.inline("fine?"),
        Source("b.txt", b"\xff"),
        file("c.txt", "# only a comment\n"),
        file("d.json", '{"x": {"type": "bool"}}'),
    ) == (
        "a.txt:2:7: options come last on the line (\\[ keeps a bracket as text)",
        "-Q[1]:1:5: only one option: separate options with |, levels with < in spaces",
        "b.txt: is not UTF-8 text (byte 0xff at offset 0)",
        "c.txt: no question in it",
        "d.json:1:16: x.type: must be noul, choice or score (got bool)",
        "a.txt:3:1: the id a is already used at a.txt:1:1",
    )


def test_an_automatic_id_never_takes_a_written_one() -> None:
    assert problems(file("q.txt", "q2: a?\nb?\n")) == (
        "q.txt:2:1: the automatic id q2 is already written at q.txt:1:1: give this question an id",
    )


@pytest.mark.parametrize(
    "source",
    [file("q.txt", ""), file("q.json", "{}"), file("q.json", "[]"), file("q.yaml", ""), file("-Q", "#")],
)
def test_an_empty_list_is_an_error(source: Source) -> None:
    assert problems(source) == (f"{source.name}: no question in it",)


def test_no_source_is_an_error() -> None:
    assert problems() == ("no questions given",)


def test_byte_order_mark_and_crlf_leave_no_trace() -> None:
    assert case("A01_questions_bom.txt") == (
        Noul("q1", "Does the writer ask for money back?"),
        Noul("q2", "Is the parcel late?"),
    )


def test_yaml_booleans_stay_the_words_that_were_written() -> None:
    assert case("B01_questions.yaml") == (
        Choice(
            "country",
            "Which country is the parcel going to?",
            names("no", "se", "dk", "on", "off", "y", "n"),
        ),
        Noul("refund", "Money back?", yes="They want money back", no="They do not"),
        Noul("yes", "Is it urgent?"),
        Choice("valve", "Which position is the valve in?", (Option("on", "flowing"), Option("off", "shut"))),
    )


def test_option_names_in_json_are_exact() -> None:
    assert case("F01_questions.json") == (
        Choice(
            "q",
            "Which word fits: the driver stopped at a pump?",
            names("refund", "refused", "refuelling", "A", " A", "a"),
        ),
    )


def test_markup_in_ids_and_names_is_plain_text() -> None:
    assert case("A07_questions.json") == (
        Choice(
            "[bold]q1", "What is the [status]?", names("[on hold]", "[/done]", "[red]stop[/red]", "a \\[b]")
        ),
    )


def test_criteria_and_instructions_may_be_one_sided_missing_or_structured() -> None:
    assert case("G04_body.json") == (
        Noul("only_true", "Money back?", yes="asks for a refund"),
        Noul("only_false", "Money back?", no="just a question"),
        Noul("null_criteria", "Money back?"),
        Noul("no_instructions", "no_instructions", yes="threatens a chargeback", no="no threat"),
        Noul("object_instructions", '{"task":"Decide","include":["refunds","chargebacks"]}'),
        Choice(
            "mixed_descriptions",
            '["Route it.","One team only."]',
            (Option("Billing", '{"owns":["invoices"]}'), Option("Tech", '["bugs"]'), Option("Sales")),
        ),
        Score(
            "object_levels",
            "How cross?",
            (
                Level('{"label":"calm"}', {"label": "calm"}),
                Level('{"label":"cross"}', {"label": "cross"}),
                Level("furious", "furious"),
            ),
        ),
    )


def test_a_list_in_yaml_holds_texts_and_one_key_mappings() -> None:
    text = "- refund: Is it?\n- Plain?\n- 'team: Which? [a: b | c]'\n"
    text += "- x: {type: choice, criteria: {a: , b: null}}"
    assert questions.load([file("q.yml", text)]) == (
        Noul("refund", "Is it?"),
        Noul("q2", "Plain?"),
        Choice("team", "Which?", (Option("a", "b"), Option("c"))),
        Choice("x", "x", names("a", "b")),
    )


@pytest.mark.parametrize(
    ("text", "problem", "next_step"),
    [
        (
            "- team: Which? [a: b | c]",
            "q.yaml:1:18: a text with a colon and a space in it must be quoted in YAML",
            "Write it as: - 'team: Which? [a: b | c]'",
        ),
        (
            "- Which? [a: foo | b]",
            "q.yaml:1:3: [0]: a text with a colon and a space must be quoted; write: - 'Which? [a: foo | b]'",
            "Correct the question list there.",
        ),
        (
            "fixed: Is issue #12 fixed?",
            "q.yaml:1:8: fixed: YAML cuts this at # as a comment; write: fixed: 'Is issue #12 fixed?'",
            "Correct it there; YAML is read as strings.",
        ),
    ],
)
def test_yaml_that_would_lose_text_shows_the_quoted_line(text: str, problem: str, next_step: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        questions.load([file("q.yaml", text)])
    assert (caught.value.problems, caught.value.next_step) == ((problem,), next_step)


def test_a_map_of_texts_may_have_any_id() -> None:
    text = '{"zz 🙂.1": "b: c? [x | y]", "w": {"type": "noul", "instructions": "d?"}}'
    assert questions.load([file("q.json", text)]) == (
        Choice("zz 🙂.1", "b: c?", names("x", "y")),
        Noul("w", "d?"),
    )


def test_of_a_request_body_only_the_questions_are_used() -> None:
    body = '{"model": "m", "state": {"a": 1}, "questions": ["a?", "b: c?"]}'
    assert questions.load([file("q.json", body)]) == (Noul("q1", "a?"), Noul("b", "c?"))
    alone = '{"questions": {"type": "noul", "instructions": "a?"}}'
    assert questions.load([file("q.json", alone)]) == (Noul("questions", "a?"),)


def test_stdin_is_told_by_content() -> None:
    def stdin(text: str) -> tuple[Question, ...]:
        return questions.load([Source("stdin", text.encode(), is_stdin=True)])

    assert stdin('\n{"a": "x?"}') == (Noul("a", "x?"),)
    assert stdin("a: x?") == (Noul("a", "x?"),)
    assert stdin("{a x?") == (Noul("q1", "{a x?"),)
    assert problems(Source("stdin", b'{"a": "x?", "a": "y?"}', is_stdin=True)) == (
        "stdin:1:13: a: this key is there twice",
    )


def test_json_in_a_text_file_is_never_read_as_questions() -> None:
    assert problems(file("q.txt", '{"a":\n "x?"}')) == (
        "q.txt:1:1: this is JSON, but the name says plain text",
    )


def test_every_wire_fault_of_a_file_has_its_place() -> None:
    text = """\
n:
  type: noul
  instruction: x
  criteria: {maybe: x, true: a, yes: b}
m: {type: noul, criteria: [a]}
z: {instructions: x}
w: {type: choice}
c: {type: choice, criteria: {a: 1}}
l: {type: choice, criteria: [a, a, {b: c}]}
s: {type: score, criteria: {'0': a}}
v: {type: score, criteria: [a]}
t: [x]
"""
    assert problems(file("q.yaml", text)) == (
        "q.yaml:3:16: n.instruction: unknown field; did you mean instructions?",
        "q.yaml:4:21: n.criteria.maybe: must be true or false",
        "q.yaml:4:38: n.criteria.yes: this side is described twice",
        "q.yaml:5:27: m.criteria: must be an object with true and false, or absent",
        "q.yaml:6:4: z.type: is missing: must be noul, choice or score",
        "q.yaml:7:4: w.criteria: is missing: must be an object of option names and descriptions",
        "q.yaml:8:29: c.criteria: 1 option: 2 to 255 are allowed",
        "q.yaml:9:33: l.criteria[1]: this option is there twice (got a)",
        "q.yaml:9:36: l.criteria[2]: must be an option's name (descriptions need an object)",
        "q.yaml:10:28: s.criteria: must be a list of levels, lowest first",
        "q.yaml:11:28: v.criteria: 1 level: 2 to 64 are allowed",
        "q.yaml:12:4: t: a question is an object with a type or a text",
    )


def test_wrong_kinds_of_json_values_are_refused_where_they_stand() -> None:
    text = '["#x", "", 5, {"a": "x?", "b": "y?"}, "p: ", {"": "x?"}]'
    assert problems(file("q.json", text)) == (
        "q.json:1:2: [0]: a comment is no question (\\# starts a text with #)",
        "q.json:1:8: [1]: the question is empty",
        "q.json:1:12: [2]: a question in a list is a text, or one id with its question",
        "q.json:1:15: [3]: a question in a list is a text, or one id with its question",
        "q.json:1:39: [4]: the question is empty (at character 3 of the text)",
        'q.json:1:51: [5][""]: the id is empty',
    )
    assert problems(file("q.json", "5")) == ("q.json:1:1: questions are an object or a list",)


def test_over_the_wire_unknown_fields_are_ignored_and_problems_hold_no_values() -> None:
    value = reading.parse_json(
        '{"a": {"type": "noul", "instruction": "x", "seed": 7},'
        ' "b": {"type": "secret"}, "c": {"type": "score", "criteria": ["x", null, 3, ""]}, "d": 1}',
        name="f",
    )
    found, faults = questions.from_wire(value)
    assert found == (Noul("a", "a"),)
    assert [(fault.loc, fault.message) for fault in faults] == [
        (("b", "type"), "must be noul, choice or score"),
        (("c", "criteria", 1), "a level must be a text, an object or an array"),
        (("c", "criteria", 2), "must be a text, an object or an array"),
        (("c", "criteria", 3), "a level must be a text, an object or an array"),
        (("d",), "a question is an object with a type"),
    ]


@pytest.mark.parametrize("name", ["B01_questions.yaml", "F01_questions.json", "G04_body.json", "G06_b.json"])
def test_the_wire_form_reads_back_as_the_same_question(name: str) -> None:
    asked = case(name)
    wire = json.dumps({question.id: questions.to_wire(question) for question in asked})
    assert questions.from_wire(reading.parse_json(wire, name="f")) == (asked, ())


def test_wire_forms() -> None:
    assert [
        questions.to_wire(one(line)) for line in ("a?", "a? [yes: b | no]", "a? [b: c | d]", "a? [b < c]")
    ] == [
        {"type": "noul", "instructions": "a?"},
        {"type": "noul", "instructions": "a?", "criteria": {"true": "b"}},
        {"type": "choice", "instructions": "a?", "criteria": {"b": "c", "d": None}},
        {"type": "score", "instructions": "a?", "criteria": ["b", "c"]},
    ]


def test_pick_reads_options_as_name_and_description() -> None:
    given = ["billing:Payments", "sales: New seats ", r"12\:30", "http", r"a\|b|c [x] < y"]
    assert questions.choice(" Which? [x | y] ", given) == Choice(
        "q1",
        "Which? [x | y]",
        (
            Option("billing", "Payments"),
            Option("sales", "New seats"),
            *names("12:30", "http", "a|b|c [x] < y"),
        ),
    )
    assert questions.choice("p?", ["yes", "no"]) == Choice("q1", "p?", names("yes", "no"))


def test_pick_reports_all_bad_options_at_once() -> None:
    with pytest.raises(errors.InputError) as caught:
        questions.choice(" ", ["a", "A", ":b", "c:"])
    assert caught.value.problems == (
        "-o[2]: the option A is already given by -o[1]",
        "-o[3]: an option without a name",
        "-o[4]: the description is missing behind c:",
        "the question is empty",
    )
    with pytest.raises(errors.InputError) as caught:
        questions.choice("p?", ["a"])
    assert caught.value.problems == ("1 given with -o: 2 to 255 options are allowed",)


def test_random_lines_never_raise_anything_but_input_errors() -> None:
    source = random.Random(3)
    pieces = [
        *"\\|<[]:# \tay",
        " < ",
        " | ",
        ": ",
        "[a | b]",
        "yes",
        "no",
        "é",
        "\u0301",
        "\x00",
        "id: ",
        "🙂",
        "\ud800",
    ]
    faults: list[str] = []
    for _ in range(4000):
        text = "".join(source.choices(pieces, k=source.randrange(16)))
        try:
            questions.load([questions.inline(text)])
        except errors.InputError as exc:
            faults += [problem for problem in exc.problems if "\n" in problem]
    assert faults == []


def test_random_trees_never_raise_anything_but_input_errors() -> None:
    source = random.Random(5)
    keys = ["type", "instructions", "criteria", "questions", "state", "true", "false", "a", ""]
    leaves: list[object] = ["noul", "choice", "score", "a? [x | y]", "#", "", None, True, 3, 1.5, "~"]

    def make(depth: int) -> object:
        if depth > 4 or source.random() < 0.3:
            return source.choice(leaves)
        if source.random() < 0.3:
            return [make(depth + 1) for _ in range(source.randrange(4))]
        return {source.choice(keys): make(depth + 1) for _ in range(source.randrange(5))}

    faults: list[str] = []
    for number in range(1000):
        # JSON is YAML too, so one text tries both readers.
        name = "q.yaml" if number % 10 == 0 else "q.json"
        try:
            questions.load([file(name, json.dumps(make(0)))])
        except errors.InputError as exc:
            faults += [problem for problem in exc.problems if "\n" in problem]
    assert faults == []


def test_long_lines_of_brackets_take_no_time_to_refuse() -> None:
    # Quadratic scanning of so many brackets would take half a minute.
    assert one("p? " + "[" * 30_000) == Noul("q1", "p? " + "[" * 30_000)
    (problem,) = problems(questions.inline("p? " + "[" * 15_000 + "|" + "]" * 15_000))
    assert problem == "-Q:1:15004: | inside inner brackets: write \\| or \\[ there"


def test_the_examples_are_read_and_the_two_forms_say_the_same() -> None:
    lists = {
        path.name: questions.load([Source(path.name, path.read_bytes())])
        for path in EXAMPLES.glob("*questions*")
    }
    assert lists["questions.txt"] == lists["questions.yaml"]
    assert [type(question) for question in lists["questions.txt"]] == [Noul, Choice, Score, Noul]
    assert [question.id for question in lists["policy-questions.txt"]] == ["taxi", "hardware", "strictness"]
