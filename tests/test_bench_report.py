"""The report: one file that any browser opens without a network, with a plot of everything that was measured."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from edgekit.bench.record import Conditions, Measurement, Settings, Start
from edgekit.bench.report import _minor_label, render
from edgekit.bench.soak import Soak, Window
from edgekit.bench.stats import latency
from edgekit.bench.why import Why
from edgekit.cli.main import main
from edgekit.runtimes.profile import Operator, Profile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


UNTOLD = Why(
    candidate="flash · litert 1t",
    query_ms=9.0,
    query_count=10,
    profile=Profile(
        runtime="litert", operators=(Operator(kind="CONV_2D", is_float=True, count=1, time_ms=0.0),), has_times=False
    ),
    converting_share=None,
    layout_share=None,
    page_faults=0.0,
    counts=None,
    sentences=("litert tells no time",),
)


def _row(artifact: str, p50: float, *, count: int = 60, failure=None, **changes) -> Measurement:
    rounds = [[p50 * (1 + 0.01 * (i % 7)) for i in range(count)] for _ in range(12)]
    values = {
        "model": "m",
        "artifact": artifact,
        "artifact_sha256": "0",
        "precision": "float32" if artifact == "standard" else "int8",
        "size_bytes": 1000,
        "settings": Settings(runtime="onnxruntime", runtime_version="1", threads=1, spinning=False),
        "latency": None if failure else latency(rounds),
        "failure": failure,
        "start": Start(import_ms=1, load_ms=2, first_ms=3),
        "peak_memory_bytes": 50 * 2**20,
        "accuracy_ratio": 1.0,
        "device": {"cpu": "a <CPU>", "cores": "2", "architecture": "x86_64"},
        "taken_at_unix_ms": 1,
    }
    return Measurement(**(values | changes))


@pytest.fixture(scope="module")
def page() -> str:
    operators = tuple(Operator(kind=f"Kind{i}", is_float=True, count=1, time_ms=10 - i) for i in range(10))
    why = Why(
        candidate="flash · onnxruntime 1t",
        query_ms=9.0,
        query_count=10,
        profile=Profile(runtime="onnxruntime", operators=operators),
        converting_share=0.1,
        layout_share=0.0,
        page_faults=0.0,
        counts=None,
        sentences=("64 % is Kind0",),
    )
    windows = tuple(
        Window(at_s=10.0 * i, query_count=9, p50_ms=5.0 + i, temperature_c=40.0 + i, throttled=False) for i in range(6)
    )
    warm = Soak(
        candidate="c",
        windows=windows,
        first_p50_ms=5,
        sustained_p50_ms=8,
        sustained_p99_ms=None,
        finding="60% slower once warm",
    )
    rows = [
        _row("standard", 10.0, conditions=Conditions(judged_bad=("load 9 on 2 cores",))),
        _row("flash", 5.0),
        _row("broken", 1.0, failure="killed (SIGKILL)"),
        _row("few", 20.0, count=1, after_idle_ms=30.0),
    ]
    batches = {size: _row("flash", 5.0 * size) for size in (1, 2, 4)}
    found = ["flash is 2x as fast"]
    return render("m: Flash & standard", rows, found, base=rows[0], whys=[why, UNTOLD], batches=batches, soak=warm)


def test_the_page_holds_every_plot_and_every_candidate(page):
    for heading in ("Distribution of latency", "Percentiles", "Memory at peak", "Time by operator", "Latency against batch size", "Over time"):  # fmt: skip  # noqa: E501
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 6
    assert "killed (SIGKILL)" in page
    assert "Doubtful conditions: load 9 on 2 cores" in page
    assert "flash is 2x as fast" in page


def test_each_row_is_compared_with_the_standard_and_its_interval_is_told(page):
    assert re.search(r"<td>standard · onnxruntime 1t</td>.*?<td>baseline</td>", page)
    assert re.search(r"<td>flash · onnxruntime 1t</td>(<td>[^<]*</td>){4}<td>2\.00x \(", page)


def test_a_runtime_that_tells_no_times_has_its_sentence_and_no_bar(page):
    assert "flash · litert 1t: litert tells no time" in page
    (plot,) = re.findall(r"<h2>Time by operator</h2>.*?<svg.*?</svg>", page, re.DOTALL)
    assert "flash · litert 1t" not in plot
    alone = render("m", [], [], whys=[UNTOLD])
    assert "<h2>Time by operator</h2>" in alone
    assert "<svg" not in alone


@pytest.mark.parametrize(
    ("value", "label"), [(0.02, "0.02"), (0.03, "0.03"), (0.04, ""), (0.5, "0.5"), (70.0, ""), (200.0, "200")]
)
def test_between_powers_of_ten_there_are_plain_numbers(value, label):
    assert _minor_label(value) == label


def test_a_doubt_of_several_rows_is_said_once():
    rows = [
        _row(f"f{i}", 1.0, conditions=Conditions(judged_bad=(f"waiting for a CPU was {i}0% of the time",)))
        for i in (2, 3)
    ]
    page = render("m", rows, [])
    assert page.count("Doubtful conditions") == 1


def test_what_is_not_supported_is_a_dash_and_names_are_escaped(page):
    few = re.search(r"<tr><td>few .*?</tr>", page)
    assert few is not None
    assert few[0].count("<td>–</td>") == 2  # p90 and p99
    assert "a &lt;CPU&gt;" in page
    assert "<CPU>" not in page


def test_nothing_is_loaded_from_anywhere(page):
    assert "<script" not in page
    for target in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert target.startswith(("#", "data:"))
    assert not re.findall(r"url\((?!#)", page)
    assert "@import" not in page


def test_each_plot_is_well_formed_and_has_its_text_as_text(page):
    for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ET.fromstring(plot)
        words = "".join(root.itertext())
        assert "milliseconds" in words or "MiB" in words


def test_the_plots_are_grey(page):
    """Readable in black and white: no colour that is not a grey."""
    for red, green, blue in re.findall(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})\b", page):
        assert red == green == blue


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: apt-get install chromium")
def test_it_opens_in_chromium_without_a_network_and_without_console_errors(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]  # fmt: skip  # noqa: E501
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert "Over time</h2>" in done.stdout
    assert done.stdout.count("<svg") == 6
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []


def test_as_typed_it_writes_the_file_and_says_so(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    flags = ["--runtime", "onnxruntime", "--threads", "1", "--seconds", "0.1"]
    assert main(["bench", "digits", *flags, "--html", str(tmp_path / "r.html")]) == 0
    out, err = capsys.readouterr()
    assert "p50 ms" in out
    assert "wrote" in err
    text = (tmp_path / "r.html").read_text()
    assert "digits: Flash against standard" in text
    assert "<h2>Time by operator</h2>" in text
    assert main(["bench", "digits", *flags, "--html", str(tmp_path / "r.html" / "below.html")]) == 2
    assert "its folder cannot be made" in capsys.readouterr().err
    assert main(["bench", "digits", *flags, "--html", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_the_picture_of_the_readme_is_a_small_png_and_its_script_knows_where_it_lies():
    root = Path(__file__).parents[1]
    picture = root / "docs/report.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size < 200 * 1024
    assert "(docs/report.png)" in (root / "README.md").read_text()
    assert '"docs/report.png"' in (root / "tests/bench/picture.py").read_text()
