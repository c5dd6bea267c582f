#!/usr/bin/env python3
"""Draw the receipts of scripts/latency.py into the measurements pages, English and Chinese.

    scripts/render_performance.py            tables of every receipt in benchmarks/performance/
    scripts/render_performance.py --chart    and an SVG beside each receipt
    scripts/render_performance.py --check    exit 1 if a page or chart is not what the receipts say

What stands between the two `performance` marks of a page is replaced, nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import latency_numbers as numbers

JSON = dict[str, Any]
FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
RECEIPTS = FOLDER / "performance"
PAGES = {"en": FOLDER / "README.md", "zh": FOLDER / "README.zh-CN.md"}
BEGIN = "<!-- performance: written by scripts/render_performance.py -->"
END = "<!-- /performance -->"
ENDPOINTS = ("before", "primed-stock", "after", "native")

# Row labels of latency_cases.py: English, Chinese.
ROWS: dict[str, tuple[str, str]] = {
    "ticket_1q": ("ticket, 1 question", "工单，1 个问题"),
    "policy_1q": ("policy, 1 question", "政策文本，1 个问题"),
    "screenshot_1q": ("screenshot, 1 question", "截图，1 个问题"),
    "photo_1q": ("photo, 1 question", "照片，1 个问题"),
    "ticket_4q": ("ticket, 4 questions", "工单，4 个问题"),
    "policy_4q": ("policy, 4 questions", "政策文本，4 个问题"),
    "screenshot_4q": ("screenshot, 4 questions", "截图，4 个问题"),
    "page_12q": ("checkout page, 12 questions", "结账页面，12 个问题"),
    "page_12q_spaced": ("the same page with spaced JSON", "同一页面，JSON 带空格"),
    "repeat_cold": ("policy, first question", "政策文本，首次提问"),
    "repeat_new": ("same state, one new question", "同一状态，一个新问题"),
    "repeat_again": ("identical request again", "完全相同的请求再来一次"),
    "rotation_1q_first": ("four states in turn, 1 question: first round", "四个状态轮换，1 个问题：首轮"),
    "rotation_1q_later": ("four states in turn, 1 question: second round", "四个状态轮换，1 个问题：第二轮"),
    "rotation_4q_first": ("four states in turn, 4 questions: first round", "四个状态轮换，4 个问题：首轮"),
    "rotation_4q_later": ("four states in turn, 4 questions: second round", "四个状态轮换，4 个问题：第二轮"),
    "page_edit_cold": ("checkout page, 1 question", "结账页面，1 个问题"),
    "page_edit_filled": ("the page after one field was filled", "填写一个字段后的页面"),
    "page_edit_no_history": ("the page without its history", "去掉历史记录的页面"),
    "game": ("game: 16 decisions on one board", "棋局：同一棋盘 16 次决策"),
    "each_64": ("64 short states, 8 at once", "64 个短状态，8 个并发"),
    "prepare_2048x1536": ("preparing a 2048x1536 JPEG", "预处理 2048x1536 JPEG"),
    "prepare_4032x3024": ("preparing a 4032x3024 JPEG", "预处理 4032x3024 JPEG"),
}
GOALS: dict[str, tuple[str, str]] = {
    "one": ("ratio <= {:.3f}", "比值 <= {:.3f}"),
    "ideal": ("ratio <= {:.3f}", "比值 <= {:.3f}"),
    "repeat": ("<= {:.0f} ms", "<= {:.0f} ms"),
    "counted": ("<= {:.0f} tokens read", "读取 <= {:.0f} 个 token"),
    "resumed": ("<= {:.0f} tokens read", "读取 <= {:.0f} 个 token"),
    "faster": ("ratio < {:.2f}", "比值 < {:.2f}"),
    "prepare": ("ratio <= {:.2f}", "比值 <= {:.2f}"),
}
FAILURES: dict[str, tuple[str, str]] = {
    "goal": ("the goal", "未达到目标"),
    "native": ("slower than `native` ({ratio:.3f})", "比 `native` 慢（{ratio:.3f}）"),
    "flipped": ("{flipped} of {questions} decisions of `{endpoint}` differ",
                "`{endpoint}` 的 {questions} 个决策中有 {flipped} 个不同"),
    "differs": ("probabilities of `{endpoint}` differ by {largest:.1e}", "`{endpoint}` 的概率相差 {largest:.1e}"),
}  # fmt: skip


@dataclass(frozen=True)
class Words:
    """What a page says in one language. at: which of the pair in ROWS and GOALS."""

    at: int
    language: str
    head: str
    row: str
    others: str
    run: str
    pairs: str
    pairs_of: str
    missed: str
    none_missed: str
    where: str
    where_head: str
    rate: str
    round_trip: str
    yes: str
    no: str


WORDS = {
    "en": Words(
        at=0,
        language="en",
        row="row",
        others="The same requests at other endpoints, in the same turns (medians, milliseconds):",
        head="| row | before | primed-stock | after | native | tokens read by after | ratio | ideal | goal | met |",
        run="{model} on {cpu} ({cores} cores, {features}), {trials} trials, {minutes} minutes, {began}."
        " Medians of wall-clock milliseconds; ratio = after / before.",
        pairs="Answers compared pair by pair with those of `before` (of the 64 states: with each asked alone), where"
        " both read equally many tokens; the largest difference of a probability:",
        pairs_of="`{endpoint}` {questions}, {flipped} decisions differ, {largest:.1e}",
        missed="Missed:",
        none_missed="No goal was missed.",
        where="Where the time of `after` goes, in milliseconds. `rest` is what the round trip took beyond the"
        " engine's own times: HTTP, JSON, and waiting for the scheduler.",
        where_head="| request | tokens read | Python | tokenize | queue | encode | prefix | questions | rest | read at"
        " llama-bench's rate |",
        rate="llama-bench, same model and threads: {rates} tokens a second at {lengths} tokens.",
        round_trip="A round trip that does nothing takes {ms:.2f} ms.",
        yes="yes",
        no="**no**",
    ),
    "zh": Words(
        at=1,
        language="zh",
        row="项目",
        others="同一轮次中其他端点对同一请求的耗时（中位数，毫秒）：",
        head="| 项目 | before | primed-stock | after | native | after 读取的 token | 比值 | 理想值 | 目标 | 达成 |",
        run="{model}，{cpu}（{cores} 核，{features}），{trials} 次试验，{minutes} 分钟，{began}。"
        "数值为墙钟时间中位数（毫秒）；比值 = after / before。",
        pairs="与 `before` 的答案逐对比较（64 个状态：与逐个单独提问比较），仅限双方读取的 token 数相同时；"
        "末尾为概率的最大差异：",
        pairs_of="`{endpoint}` {questions} 个，{flipped} 个决策不同，{largest:.1e}",
        missed="未达成：",
        none_missed="所有目标均已达成。",
        where="`after` 的时间去向（毫秒）。“其余”为往返时间中引擎自身计时之外的部分：HTTP、JSON 与等待调度。",
        where_head="| 请求 | 读取的 token | Python | 分词 | 排队 | 图像编码 | 前缀 | 问题 | 其余 | llama-bench 速率 |",
        rate="llama-bench（同一模型与线程数）：{lengths} 个 token 时每秒 {rates} 个 token。",
        round_trip="一次空往返耗时 {ms:.2f} ms。",
        yes="是",
        no="**否**",
    ),
}


def number(value: float | None, digits: int) -> str:
    """Return a number for a table cell, - for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(receipt: JSON, words: Words) -> list[str]:
    """Return the lines of the table of all rows."""
    lines = [words.head, "|---|" + "---:|" * 7 + "---|---|"]
    for row in receipt["rows"]:
        name = ROWS.get(row["label"], (row["label"], row["label"]))[words.at]
        ms = row["median_ms"]
        # Rows that are no comparison of endpoints show what they compare with in the first column.
        other = next((value for key, value in ms.items() if key not in ENDPOINTS), None)
        cells = [
            number(ms.get(endpoint, other if endpoint == "before" else None), 1) for endpoint in ENDPOINTS
        ]
        goal = GOALS[row["goal"]][words.at].format(row["limit"]) if row["limit"] is not None else "-"
        met = {True: words.yes, False: words.no, None: "-"}[row["is_met"]]
        read = row.get("tokens_read", {}).get("after")
        cells += [
            "-" if read is None else str(read),
            number(row["ratio"], 3),
            number(row["ideal"], 3),
            goal,
            met,
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def others_table(receipt: JSON, words: Words) -> list[str]:
    """Return the lines that compare `after` with the endpoints given as NAME=URL, none without any."""
    others = [name for name in receipt["run"].get("endpoints", ()) if name not in ENDPOINTS]
    rows = [row for row in receipt["rows"] if any(name in row["median_ms"] for name in others)]
    if not rows:
        return []
    heads = [f"{name} | {name} / after" for name in others]
    lines = ["", words.others, "", f"| {words.row} | after | " + " | ".join(heads) + " |"]
    lines.append("|---" + "|---:" * (1 + 2 * len(others)) + "|")
    for row in rows:
        ms = row["median_ms"]
        after = ms.get("after")
        cells = [number(after, 1)]
        for name in others:
            ratio = ms[name] / after if after and name in ms else None
            cells += [number(ms.get(name), 1), number(ratio, 3)]
        label = ROWS.get(row["label"], (row["label"], row["label"]))[words.at]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def where_table(found: JSON, words: Words) -> list[str]:
    """Return the lines that say where the time of a request goes."""
    rates = {run["tokens"]: run["tokens_per_s"] for run in found["llama_bench"]}
    lines = [words.where, "", words.where_head, "|---|" + "---:|" * 9]
    for name, times in found["requests"].items():
        engine_ms = sum(times[part] for part in ("tokenize", "queue", "encode", "prefix", "suffixes"))
        ideal_ms = None
        if rates:
            nearest = min(rates, key=lambda tokens: abs(tokens - times["tokens_read"]))
            ideal_ms = times["tokens_read"] / rates[nearest] * 1000.0
        parts = [times[part] for part in ("python", "tokenize", "queue", "encode", "prefix", "suffixes")]
        cells = [f"{times['tokens_read']:.0f}", *(number(ms, 2) for ms in parts)]
        cells += [number(max(0.0, times["round_trip"] - engine_ms), 2), number(ideal_ms, 1)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", words.round_trip.format(ms=found["round_trip_ms"])]
    if rates:
        shown = {"rates": ", ".join(map(str, rates.values())), "lengths": ", ".join(map(str, rates))}
        lines[-1] += " " + words.rate.format(**shown)
    return lines


def failure(one: numbers.Failure, words: Words) -> str:
    """Return the line about one thing that was missed."""
    name = ROWS.get(one.label, (one.label, one.label))[words.at]
    return f"{name}: " + FAILURES[one.kind][words.at].format(**one.values)


def section(name: str, receipt: JSON, words: Words, *, has_chart: bool) -> list[str]:
    """Return the lines about one receipt."""
    machine, run = receipt["machine"], receipt["run"]
    shown = {
        "model": run["model"]["name"].rsplit("-plain", 1)[0],
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "features": ", ".join(machine["features"]) or "-",
        "trials": run["trials"],
        "minutes": receipt.get("minutes", "?"),
        "began": receipt["began"][:10],
    }
    lines = [f"### [{name}](performance/{name}.json)", "", words.run.format(**shown), ""]
    if has_chart:
        lines += [f"![{name}](performance/{name}.svg)", ""]
    lines += table(receipt, words)
    if note := receipt.get("note", {}).get(words.language):
        lines += ["", note]
    lines += others_table(receipt, words)
    compared: dict[str, list[JSON]] = defaultdict(list)
    for row in receipt["rows"]:
        for endpoint, pairs in row.get("pairs", {}).items():
            if pairs["questions"]:
                compared[endpoint].append(pairs)
    if compared:
        lines += ["", words.pairs, ""]
    for endpoint, found in compared.items():
        totals = {key: sum(pairs[key] for pairs in found) for key in ("questions", "flipped")}
        largest = max(pairs["largest_difference"] for pairs in found)
        lines.append(f"- {words.pairs_of.format(endpoint=endpoint, **totals, largest=largest)}")
    missed = numbers.failures(receipt["rows"])
    lines += ["", words.none_missed if not missed else words.missed]
    if missed:
        lines += ["", *(f"- {failure(one, words)}" for one in missed)]
    if "where" in receipt["cases"]:
        lines += ["", *where_table(receipt["cases"]["where"], words)]
    return lines


def page(text: str, receipts: dict[str, JSON], words: Words, *, charts: Sequence[str]) -> str:
    """Return the page with what stands between its marks written anew. Raises SystemExit without marks."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"a page lacks its marks: {BEGIN} ... {END}")
    lines: list[str] = []
    for name, receipt in receipts.items():
        lines += ["", *section(name, receipt, words, has_chart=name in charts)]
    written = "\n".join(lines).strip("\n")
    return before + BEGIN + "\n" + (written + "\n" if written else "") + END + after


# -------------------------------------------------------------------------------------------------- chart

COLOURS = {"before": "#9aa0a6", "primed-stock": "#5b8def", "after": "#1a9e5c", "native": "#c77d2e"}
LEFT, BAR, GAP, WIDTH = 290, 11, 14, 430


def chart(receipt: JSON) -> str:
    """Return an SVG: for each row that has them, a bar an endpoint, `before` = 1, and the ideal as a line."""
    shown = [row for row in receipt["rows"] if row["median_ms"].get("before") and len(row["median_ms"]) > 1]
    longest = max((max(row["median_ms"].values()) / row["median_ms"]["before"] for row in shown), default=1.0)
    scale = WIDTH / max(1.0, longest)
    parts: list[str] = []
    top = 46
    for row in shown:
        name = ROWS.get(row["label"], (row["label"],))[0]
        present = [endpoint for endpoint in ENDPOINTS if endpoint in row["median_ms"]]
        height = BAR * len(present)
        middle = top + height / 2 + 4
        parts.append(f'<text x="{LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for i, endpoint in enumerate(present):
            share = row["median_ms"][endpoint] / row["median_ms"]["before"]
            y = top + i * BAR
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{share * scale:.1f}" height="{BAR - 2}" '
                f'fill="{COLOURS[endpoint]}"/>'
                f'<text x="{LEFT + share * scale + 5:.1f}" y="{y + 8}" class="v">{share:.2f}</text>'
            )
        if row["ideal"] is not None and len(present) > 1:
            x = LEFT + row["ideal"] * scale
            parts.append(f'<path d="M{x:.1f} {top - 3}V{top + height + 1}" class="ideal"/>')
        top += height + GAP
    legend = "".join(
        f'<rect x="{LEFT + i * 110}" y="14" width="10" height="10" fill="{colour}"/>'
        f'<text x="{LEFT + i * 110 + 15}" y="23">{name}</text>'
        for i, (name, colour) in enumerate(COLOURS.items())
    )
    style = (
        "text{font:12px sans-serif;fill:#777}.v{font-size:9px}"
        ".ideal{stroke:#d33;stroke-width:1.5;stroke-dasharray:3 2;fill:none}"
    )
    note = f'<text x="{LEFT}" y="38" class="v">time, before = 1; dashed: ideal</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 50}" height="{top}">'
        f"<style>{style}</style>\n{legend}{note}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chart", action="store_true", help="draw an SVG beside each receipt")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is stale")
    options = parser.parse_args()
    receipts = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECEIPTS.glob("*.json"))
    }
    wanted: dict[Path, str] = {}
    for name, receipt in receipts.items():
        path = RECEIPTS / f"{name}.svg"
        if options.chart or path.exists():
            wanted[path] = chart(receipt)
    charts = [path.stem for path in wanted]
    for language, path in PAGES.items():
        wanted[path] = page(path.read_text(encoding="utf-8"), receipts, WORDS[language], charts=charts)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        print(
            f"{'stale' if options.check else 'written'}: {path.relative_to(FOLDER.parent)}", file=sys.stderr
        )
        if not options.check:
            path.write_text(wanted[path], encoding="utf-8")
    if options.check and stale:
        print("run: scripts/render_performance.py --chart", file=sys.stderr)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
