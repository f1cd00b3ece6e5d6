"""The Grafana dashboard asks only for what the collector serves, in queries that Prometheus reads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgekit.collect.prometheus import FleetCollector
from edgekit.fleet import Fleet

BOARD = json.loads((Path(__file__).resolve().parent.parent / "docs/grafana-dashboard.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
_OURS = re.compile(r"edgekit_[a-z_0-9]+")


def served() -> set[str]:
    """Every series name that /metrics may show."""
    counts = dict.fromkeys(("windows", "historical", "duplicates", "malformed"), 0) | {"delay_p99_ms": 1.0, "state": ""}
    names = set()
    for family in FleetCollector(lambda: (Fleet(), {}, counts)).collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{t}-{i}" for i, (t, _) in enumerate(QUERIES)])
def test_a_panel_asks_for_what_is_served(title: str, query: str) -> None:
    asked = set(_OURS.findall(query))
    assert asked, f"{title} asks for nothing of ours"
    assert asked <= served()


def test_its_choices_ask_for_what_is_served_with_labels_that_are_there() -> None:
    for name in ("site", "model"):
        query = VARIABLES[name]["query"]["query"]
        found = re.fullmatch(r"label_values\((edgekit_[a-z_]+), ([a-z]+)\)", query)
        assert found, query
        assert found[1] in served()
        assert found[2] == name


def test_every_variable_that_a_query_uses_is_declared() -> None:
    used = {name for _, query in QUERIES for name in re.findall(r"\$([a-z]\w*)", query)}
    assert used == {"site", "model"}
    assert used <= VARIABLES.keys()
    sources = {panel["datasource"]["uid"] for panel in BOARD["panels"]}
    assert sources == {"${datasource}"}, "bound to nobody's server"


def test_percentiles_come_from_buckets_that_were_added_first() -> None:
    """An average of percentiles is no percentile."""
    for title, query in QUERIES:
        if "histogram_quantile" in query:
            assert re.search(r"histogram_quantile\(0\.\d+, sum by \(le", query), title
        assert "avg(" not in query or "quantile" not in query, title


def test_no_panel_lies_over_another_or_beyond_the_edge() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool; to mend it: apt install prometheus")
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, (_, query) in enumerate(QUERIES):
        plain = query.replace("$__rate_interval", "5m").replace("$site", ".*").replace("$model", ".*")
        lines += [f"      - record: panel_{number}", f"        expr: {json.dumps(plain)}"]
    (tmp_path / "rules.yml").write_text("\n".join(lines) + "\n")
    done = subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout
