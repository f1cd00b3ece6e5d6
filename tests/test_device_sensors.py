"""Readings: units, ranges, and None where a sensor is missing or cannot be believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgekit.device.sensors import Reading, power_between, read

Plant = Callable[[dict[str, str | bytes]], Path]
Files = dict[str, str | bytes]


def zone(number: int, kind: str, millidegrees: str) -> Files:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": kind + "\n", f"{folder}/temp": millidegrees + "\n"}


def hwmon(number: int, name: str, **values: str) -> Files:
    folder = f"sys/class/hwmon/hwmon{number}"
    return {f"{folder}/name": name + "\n"} | {f"{folder}/{key}": value + "\n" for key, value in values.items()}


def test_a_board_without_sensors_reads_none_everywhere(tmp_path: Path) -> None:
    reading = read(tmp_path)
    values = {key: value for key, value in vars(reading).items() if key not in ("taken_at_s", "problems")}
    assert set(values.values()) == {None}
    assert reading.problems == ()
    assert reading.taken_at_s > 1.7e9


def test_the_hottest_zone_of_the_chip_counts_in_degrees(plant: Plant) -> None:
    files = zone(0, "cpu-thermal", "48312") | zone(1, "gpu-thermal", "51000") | zone(2, "acpitz", "90000")
    assert read(plant(files)).temperature_c == 51.0


def test_a_jetsons_constant_pmic_zone_is_no_temperature(plant: Plant) -> None:
    assert read(plant(zone(0, "PMIC-Die", "100000") | zone(1, "CPU-therm", "41500"))).temperature_c == 41.5


def test_a_zone_of_unknown_kind_is_taken_when_no_chip_zone_shows(plant: Plant) -> None:
    assert read(plant(zone(0, "thermal-zone0", "39000"))).temperature_c == 39.0


@pytest.mark.parametrize("text", ["-256000", "850000", "-2147483648"])
def test_a_temperature_out_of_range_is_none_with_a_reason(plant: Plant, text: str) -> None:
    reading = read(plant(zone(0, "cpu-thermal", text)))
    assert reading.temperature_c is None
    assert any("out of range" in problem for problem in reading.problems)


def test_a_pcs_temperature_comes_from_its_hwmon_sensor(plant: Plant) -> None:
    files = hwmon(0, "acpitz", temp1_input="27800") | hwmon(1, "k10temp", temp1_input="61250")
    assert read(plant(files)).temperature_c == 61.25


def test_power_is_the_input_rail_of_a_jetson(plant: Plant) -> None:
    rails = {"in1_label": "VDD_IN", "in1_input": "5000", "curr1_input": "1200", "in2_label": "VDD_CPU_GPU_CV"}
    assert read(plant(hwmon(3, "ina3221", **rails, in2_input="5000", curr2_input="400"))).power_mw == 6000.0


def test_power_is_the_sum_of_rails_where_none_is_the_input(plant: Plant) -> None:
    rails = {"in1_label": "VDD_GPU_SOC", "in1_input": "19000", "curr1_input": "100"}
    more = {"in2_label": "VDD_CPU_CV", "in2_input": "19000", "curr2_input": "50", "in3_label": "NC", "in3_input": "1"}
    assert read(plant(hwmon(1, "ina3221", **rails, **more))).power_mw == 2850.0


def test_power_of_jetpack_4s_driver(plant: Plant) -> None:
    device = "sys/bus/iio/devices/iio:device0"
    assert (
        read(plant({f"{device}/rail_name_0": "POM_5V_IN\n", f"{device}/in_power0_input": "2105\n"})).power_mw == 2105.0
    )


def test_a_power_of_zero_is_none_with_a_reason(plant: Plant) -> None:
    reading = read(plant(hwmon(0, "ina238", power1_input="0")))
    assert reading.power_mw is None
    assert any("power" in problem for problem in reading.problems)


def test_mean_power_comes_from_the_energy_counter(plant: Plant) -> None:
    counter = "sys/class/powercap/intel-rapl:0/energy_uj"
    before = replace(read(plant({counter: "1000000\n"})), taken_at_s=10.0)
    after = replace(read(plant({counter: "31000000\n"})), taken_at_s=12.0)
    assert power_between(before, after) == 15000.0
    assert power_between(after, before) is None  # a wrapped counter, or time going backwards


def test_mean_power_without_a_counter_is_the_mean_of_both(tmp_path: Path) -> None:
    blank = read(tmp_path)
    assert power_between(replace(blank, power_mw=4000.0), replace(blank, power_mw=6000.0)) == 5000.0
    assert power_between(blank, blank) is None


@pytest.mark.parametrize(
    ("bits", "throttled", "under_voltage"),
    [
        ("0\n", False, False),
        ("50005\n", True, True),
        ("50000\n", False, False),
        ("2\n", True, False),
        ("8\n", True, False),
    ],
)
def test_the_pis_firmware_word_tells_now_from_earlier(
    plant: Plant, bits: str, throttled: bool, under_voltage: bool
) -> None:
    reading = read(plant({"sys/devices/platform/soc/soc:firmware/get_throttled": bits}))
    assert (reading.throttled, reading.under_voltage) == (throttled, under_voltage)


def test_under_voltage_by_the_pis_hwmon(plant: Plant) -> None:
    assert read(plant(hwmon(0, "rpi_volt", in0_lcrit_alarm="1"))).under_voltage is True


@pytest.mark.parametrize(("state", "throttled"), [("0", False), ("3", True)])
def test_a_cpu_cooling_device_above_zero_is_throttling(plant: Plant, state: str, throttled: bool) -> None:
    folder = "sys/class/thermal/cooling_device0"
    assert read(plant({f"{folder}/type": "cpufreq-cpu0\n", f"{folder}/cur_state": state})).throttled is throttled


def test_a_spinning_fan_is_no_throttling(plant: Plant) -> None:
    folder = "sys/class/thermal/cooling_device0"
    assert read(plant({f"{folder}/type": "pwm-fan\n", f"{folder}/cur_state": "4"})).throttled is None


def test_throttling_that_hardware_counts(plant: Plant) -> None:
    jetson = hwmon(0, "soctherm_oc", oc1_event_cnt="2", oc3_event_cnt="5", oc3_throt_en="1")
    assert read(plant(jetson)).throttle_events_count == 7
    pc = {f"sys/devices/system/cpu/cpu{n}/thermal_throttle/core_throttle_count": "1\n" for n in range(3)}
    assert read(plant({**pc, **hwmon(0, "coretemp")})).throttle_events_count == 3


def test_gpu_load_is_a_ratio_and_its_clock_in_hertz(plant: Plant) -> None:
    files: Files = {"sys/devices/gpu.0/load": "735\n", "sys/class/devfreq/17000000.ga10b/cur_freq": "624750000\n"}
    reading = read(plant(files))
    assert (reading.gpu_load_ratio, reading.gpu_hz) == (0.735, 624750000)


def test_a_gpu_load_out_of_range_is_none_with_a_reason(plant: Plant) -> None:
    reading = read(plant({"sys/devices/gpu.0/load": "4294967295\n"}))
    assert reading.gpu_load_ratio is None
    assert len(reading.problems) == 1


def test_clock_load_and_memory(plant: Plant) -> None:
    reading = read(
        plant(
            {
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "600000\n",
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1800000\n",
                "sys/devices/system/cpu/cpufreq/policy0/x": "",
                "proc/loadavg": "0.42 0.30 0.20 1/100 1234\n",
                "proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n",
            }
        )
    )
    assert (reading.cpu_hz, reading.load_1m, reading.memory_available_bytes) == (1_800_000_000, 0.42, 1024 * 1024)


def test_this_machine_gives_a_reading() -> None:
    reading = read()
    assert isinstance(reading, Reading)
    assert (reading.memory_available_bytes or 0) > 0
    assert reading.load_1m is not None
