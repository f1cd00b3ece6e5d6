"""Memory, sensors, power and storage: what each spelling of a file means, and what is not believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.device import sensors
from edgekit.device.memory import _about_declared, _about_firmware, read_meminfo, read_memory
from edgekit.device.tree import Tree

Plant = Callable[[dict[str, str | bytes]], Path]
MIB, GIB = 1 << 20, 1 << 30


def meminfo(**kib: int) -> dict[str, str | bytes]:
    return {"proc/meminfo": "".join(f"{key}: {value} kB\n" for key, value in kib.items())}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("MemTotal:       8000 kB\n", {"MemTotal": 8_192_000}),
        ("MemTotal:8000 kB\nMemFree:\t1 kB\n", {"MemTotal": 8_192_000, "MemFree": 1024}),
        ("MemTotal: 8000\n", {}),
        ("MemTotal: 8000 MB\n", {}),
        ("MemTotal: -8 kB\n", {}),
        ("MemTotal: 8000 kB\nMemTotal: 1 kB\n", {"MemTotal": 8_192_000}),
        ("MemTotal: 8000 kB\nMemFre", {"MemTotal": 8_192_000}),
        ("MemTotal: 8000 kB", {"MemTotal": 8_192_000}),
        ("Active(anon): 2 kB\n", {"Active(anon)": 2048}),
        ("", {}),
        ("        total:    used:    free:\nMem:  1000 600 400\n", {"MemTotal": 1000, "MemFree": 400}),
    ],
)
def test_a_line_of_meminfo_counts_when_it_is_whole(text: str, fields: dict[str, int], plant: Plant) -> None:
    assert read_meminfo(Tree(plant({"proc/meminfo": text}))) == fields


@given(
    total=st.integers(1, 1 << 34),
    available=st.integers(0, 1 << 34),
    free=st.integers(0, 1 << 34),
)
def test_available_is_never_more_than_the_total_nor_below_zero(total: int, available: int, free: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proc"
        path.mkdir()
        (path / "meminfo").write_text(f"MemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {available} kB\n")
        memory = read_memory(Tree(folder))
    assert memory.total_bytes == total * 1024
    assert memory.available_bytes is not None
    assert 0 <= memory.available_bytes <= total * 1024


@pytest.mark.parametrize(
    ("fields", "available"),
    [
        ({"MemTotal": 100, "MemAvailable": 60, "MemFree": 10}, 60),
        ({"MemTotal": 100, "MemFree": 10, "Buffers": 5, "Cached": 20}, 35),
        ({"MemTotal": 100, "MemFree": 10}, 10),
        ({"MemTotal": 100, "MemAvailable": 0, "MemFree": 7}, 7),
        ({"MemTotal": 100}, None),
        ({"MemTotal": 100, "MemAvailable": 300}, 100),
    ],
)
def test_what_is_available_is_told_or_added_up(fields: dict[str, int], available: int | None, plant: Plant) -> None:
    memory = read_memory(Tree(plant(meminfo(**fields))))
    assert memory.available_bytes == (None if available is None else available * 1024)


@pytest.mark.parametrize(
    ("total", "declared", "words"),
    [
        (8 * GIB, 8 * GIB, None),
        (int(7.3 * GIB), 8 * GIB, None),
        (int(7.1 * GIB), 8 * GIB, "firmware carve-outs"),
        (16 * GIB, 8 * GIB, "the declaration is wrong for this unit"),
        (8 * GIB, None, None),
        (8 * GIB, 0, None),
    ],
)
def test_a_declared_size_is_doubted_below_nine_tenths_and_above(total: int, declared: int | None, words: str) -> None:
    notes = _about_declared(total, declared)
    assert (notes == []) if words is None else (words in notes[0])


@pytest.mark.parametrize(
    ("total", "firmware", "is_noted"),
    [(8 * GIB, None, False), (8 * GIB, GIB, False), (8 * GIB, 8 * GIB, False), (4 * GIB, 8 * GIB, True)],
)
def test_only_more_by_the_boot_loaders_word_is_worth_a_note(total: int, firmware: int | None, is_noted: bool) -> None:
    assert bool(_about_firmware(total, firmware)) == is_noted


@pytest.mark.parametrize(
    ("swaps", "swap"),
    [
        ("Filename Type Size Used Priority\n/dev/zram0 partition 1000 0 100\n", 1_024_000),
        ("Filename Type Size Used Priority\n/a file 10 0 -1\n/b file 20 0 -2\n", 30_720),
        ("Filename Type Size Used Priority\n", 2048),
        ("Filename\nbroken line\n", 2048),
    ],
)
def test_swap_is_the_sum_of_its_areas_else_what_meminfo_says(swaps: str, swap: int, plant: Plant) -> None:
    memory = read_memory(Tree(plant({**meminfo(MemTotal=100, SwapTotal=2), "proc/swaps": swaps})))
    assert memory.swap_bytes == swap


# Sensors


def zone(number: int, kind: str, millidegrees: str) -> dict[str, str | bytes]:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": kind, f"{folder}/temp": millidegrees}


@pytest.mark.parametrize(
    "kind", ["cpu-thermal", "GPU-therm", "soc-thermal", "x86_pkg_temp", "tj-thermal", "npu-thermal"]
)
def test_a_zone_of_the_chip_counts(kind: str, plant: Plant) -> None:
    assert sensors.read(plant(zone(0, kind, "51500"))).temperature_c == 51.5


@pytest.mark.parametrize("kind", ["PMIC-Die", "pwm-fan", "battery", "charger", "ambient", "skin-therm", "iwlwifi_1"])
def test_a_zone_beside_the_chip_does_not(kind: str, plant: Plant) -> None:
    assert sensors.read(plant(zone(0, kind, "51500"))).temperature_c is None


@pytest.mark.parametrize(
    ("text", "value", "is_told"),
    [
        ("149999", 149.999, False),
        ("150000", None, True),
        ("-39000", -39.0, False),
        ("-40000", None, True),
        ("0", 0.0, False),
        ("warm", None, False),
        ("", None, False),
    ],
)
def test_a_temperature_that_no_chip_survives_is_none_and_told(
    text: str, value: float | None, is_told: bool, plant: Plant
) -> None:
    reading = sensors.read(plant(zone(0, "cpu-thermal", text)))
    assert reading.temperature_c == value
    assert bool(reading.problems) == is_told


def test_the_hottest_of_the_chips_zones_counts_and_not_a_hotter_neighbour(plant: Plant) -> None:
    files = zone(0, "cpu-thermal", "40000") | zone(1, "gpu-thermal", "60000") | zone(2, "acpitz", "90000")
    assert sensors.read(plant(files)).temperature_c == 60.0


@pytest.mark.parametrize(
    ("files", "power_mw"),
    [
        ({"name": "ina3221", "in1_label": "VDD_IN", "in1_input": "5000", "curr1_input": "1200"}, 6000.0),
        (
            {
                "name": "ina3221",
                "in1_label": "GPU",
                "in1_input": "5000",
                "curr1_input": "100",
                "in2_label": "CPU",
                "in2_input": "5000",
                "curr2_input": "200",
            },
            1500.0,
        ),
        ({"name": "ina3221", "in1_label": "NC", "in1_input": "5000", "curr1_input": "100"}, None),
        ({"name": "ina3221", "in1_label": "VDD_IN", "in1_input": "5000"}, None),
        ({"name": "ina231", "power1_input": "4200000"}, 4200.0),
        ({"name": "rpi_power_adc", "power1_input": "3000000"}, 3000.0),
        ({"name": "nvme", "power1_input": "3000000"}, None),
        ({"name": "ina231", "power1_input": "500"}, None),
    ],
)
def test_power_is_milliwatts_whatever_the_sensors_units(
    files: dict[str, str], power_mw: float | None, plant: Plant
) -> None:
    root = plant({f"sys/class/hwmon/hwmon0/{name}": text for name, text in files.items()})
    assert sensors.read(root).power_mw == power_mw


@pytest.mark.parametrize(
    ("bits", "throttled", "under_voltage"),
    [
        ("0", False, False),
        ("1", False, True),
        ("2", True, False),
        ("4", True, False),
        ("8", True, False),
        ("50005", True, True),
        ("50000", False, False),
        ("f0000", False, False),
    ],
)
def test_the_pis_word_tells_now_in_its_low_bits_alone(
    bits: str, throttled: bool, under_voltage: bool, plant: Plant
) -> None:
    reading = sensors.read(plant({"sys/devices/platform/soc/soc:firmware/get_throttled": bits}))
    assert (reading.throttled, reading.under_voltage) == (throttled, under_voltage)


@pytest.mark.parametrize(
    ("kind", "state", "throttled"),
    [
        ("cpufreq-cpu0", "0", False),
        ("cpufreq-cpu0", "2", True),
        ("Processor", "1", True),
        ("devfreq-gpu", "3", True),
        ("pwm-fan", "4", None),
        ("intel_powerclamp", "1", None),
        ("cpufreq-cpu0", "-1", None),
    ],
)
def test_only_what_cools_by_slowing_down_is_throttling(
    kind: str, state: str, throttled: bool | None, plant: Plant
) -> None:
    folder = "sys/class/thermal/cooling_device0"
    assert sensors.read(plant({f"{folder}/type": kind, f"{folder}/cur_state": state})).throttled is throttled


@pytest.mark.parametrize(("text", "load"), [("0.52 0.58 0.59 1/467 1234", 0.52), ("12.00 1 1", 12.0), ("x", None)])
def test_load_is_that_of_the_last_minute(text: str, load: float | None, plant: Plant) -> None:
    assert sensors.read(plant({"proc/loadavg": text})).load_1m == load


@pytest.mark.parametrize(
    ("before", "after", "elapsed_s", "power_mw"),
    [
        ({"package_energy_uj": 1_000_000}, {"package_energy_uj": 3_000_000}, 2.0, 1000.0),
        ({"package_energy_uj": 3_000_000}, {"package_energy_uj": 1_000_000}, 2.0, None),
        ({"package_energy_uj": 1}, {"package_energy_uj": 5}, 0.0, None),
        ({"power_mw": 2000.0}, {"power_mw": 4000.0}, 1.0, 3000.0),
        ({"power_mw": 2000.0}, {"power_mw": None}, 1.0, None),
        ({}, {}, 1.0, None),
    ],
)
def test_mean_power_between_two_readings(
    before: dict[str, float], after: dict[str, float], elapsed_s: float, power_mw: float | None, plant: Plant
) -> None:
    blank = sensors.read(plant({"x": ""}))
    first = replace(blank, taken_at_s=100.0, **before)  # type: ignore[arg-type]
    last = replace(blank, taken_at_s=100.0 + elapsed_s, **after)  # type: ignore[arg-type]
    assert sensors.power_between(first, last) == power_mw
