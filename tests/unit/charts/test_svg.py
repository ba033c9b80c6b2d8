"""SVG files: they are well-formed, whatever names are in them, and need nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import combinations
from xml.etree import ElementTree as ET

from celery_delayq.charts import svg
from celery_delayq.charts.scales import OTHERS_NAME, Quantiles, layers_of

NOON = datetime(2026, 5, 17, 12, tzinfo=timezone.utc)
NAMES = ("\x1b[2J\x1b]0;owned\x07", "</svg><script>alert(1)</script>", "a\ud800b\0", "\u202etxt")
SVG = "{http://www.w3.org/2000/svg}"


def test_a_document_has_all_charts_one_below_the_other() -> None:
    times = [NOON + timedelta(minutes=n) for n in range(3)]
    layers = layers_of({**{name: [1, 2, 3] for name in NAMES}, "x" * 10_000_000: [1, 1, 1]})
    legend = [(each.name, each.style) for each in layers]
    rows = [(name, Quantiles.of([1, 20])) for name in NAMES]

    text = svg.document(
        [
            svg.DocumentChart("Load", svg.bars("load", times, 60, layers), legend),
            svg.DocumentChart("Late", svg.curves("late", times, 60, [("p50", "s1", [1, None, 3])])),
            svg.DocumentChart("By queue", svg.ranges("by queue", rows)),
        ]
    )

    root = ET.fromstring(text)
    charts = [each for each in root if each.tag == f"{SVG}svg"]
    ends = 0.0
    for each in charts:
        assert float(each.attrib["y"]) >= ends
        ends = float(each.attrib["y"]) + float(each.attrib["height"])
    assert (len(charts), ends <= float(root.attrib["height"])) == (3, True)
    assert len(text) < 100_000
    assert not {"\x1b", "\u202e", "\0"} & {*text}
    assert {each.tag for each in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text", "line", "path", "circle")
    }
    shown = {each.text for each in root.iter(f"{SVG}text")}
    assert {"Load", "Late", "By queue", r"\x1b[2J\x1b]0;owned\x07"} <= shown


def test_layers_have_the_colours_in_order_and_others_only_if_there_are_some() -> None:
    found = layers_of({"mail": [3], "bills": [2]}, [1])

    assert [(each.name, each.style) for each in found] == [
        ("mail", "s1"), ("bills", "s7"), (OTHERS_NAME, "s6")
    ]  # fmt: skip
    assert [each.name for each in layers_of({"mail": [3]}, [0])] == ["mail"]


def test_a_name_keeps_its_colour_when_other_names_come_and_go() -> None:
    names = [f"queue {number}" for number in range(9)]
    alone = {name: layers_of({name: [1]}, (), names)[0].style for name in names}
    for shown in combinations(names, 6):
        found = {
            each.name: each.style for each in layers_of({key: [1] for key in shown}, (), names)
        }
        assert len({*found.values()}) == 6
        if len({alone[name] for name in shown}) == 6:
            assert found == {name: alone[name] for name in shown}
    for some in combinations([*names[:6], "unknown"], 3):
        found = {each.name: each.style for each in layers_of({key: [1] for key in some}, (), names)}
        assert all(found[name] == alone[name] for name in some if name in names)
