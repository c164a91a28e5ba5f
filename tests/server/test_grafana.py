"""deploy/grafana.json: a dashboard of metrics that a server really has, and of all panels' places."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.server.conftest import Server

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "deploy" / "grafana.json").read_text(encoding="utf-8")
)
FUNCTIONS = {"sum", "max", "rate", "increase", "histogram_quantile", "by", "le", "status", "reason", "finished_reason"}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_every_metric_of_the_dashboard_exists(tiny: Server):
    tiny.complete(prompt="Hi", max_tokens=2)
    shown = set(re.findall(r"^([a-z0-9_:]+)(?:\{| )", tiny.get("/metrics").body.decode(), re.M))
    used = set()
    for expression in expressions():
        assert expression.count("(") == expression.count(")")
        used |= set(re.findall(r"\$\{prefix\}:([a-z0-9_]+)|\b(http_[a-z_]+)", expression))
    names = {f"octavo:{ours}" if ours else general for ours, general in used}
    assert len(names) > 15 and names <= shown


def test_expressions_have_no_other_names():
    for expression in expressions():
        bare = re.sub(r"\$\{prefix\}:\w+|\{[^}]*\}|\[[^]]*\]|http_\w+|[\d.]+", "", expression)
        assert set(re.findall(r"[a-z_]+", bare)) <= FUNCTIONS, expression


def test_panels_have_their_own_places_and_ids():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own and place["x"] + place["w"] <= 24
        cells |= own
