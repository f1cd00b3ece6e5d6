"""Numbers and broker options of the command line: what makes no sense is refused by its flag's own name."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.cli.mqtt_options import PORT, TLS_PORT, add_mqtt_arguments, mqtt_config
from edgekit.cli.numbers import above_zero, within
from edgekit.config import MqttConfig
from edgekit.errors import UsageError

ANY = st.one_of(st.none(), st.integers(), st.floats())


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_mqtt_arguments(parser)
    return parser.parse_args(words)


# Numbers


@given(ANY)
def test_above_zero_lets_through_what_one_can_count_or_wait(value: float | None) -> None:
    sensible = value is None or (value == value and 0 < value < float("inf"))
    if sensible:
        above_zero(latency_ms=value)
    else:
        with pytest.raises(UsageError, match=r"^--latency-ms .* must be a finite number, and more than zero$"):
            above_zero(latency_ms=value)


@given(ANY, st.integers(-5, 5), st.integers(0, 10))
def test_within_lets_through_its_ends_and_what_lies_between(value: float | None, low: int, span: int) -> None:
    if value is None or low <= value <= low + span:
        within(low, low + span, port=value)
    else:
        with pytest.raises(UsageError, match=f"^--port .* must be from {low} to {low + span}$"):
            within(low, low + span, port=value)


def test_the_first_flag_that_is_wrong_is_named_and_the_right_ones_are_not() -> None:
    with pytest.raises(UsageError) as caught:
        above_zero(seconds=5.0, samples=None, memory_mb=-3.0)
    assert str(caught.value) == "--memory-mb -3: must be a finite number, and more than zero"


# The broker


def test_without_a_word_it_is_the_broker_on_this_machine() -> None:
    assert mqtt_config(parsed()) == MqttConfig(host="127.0.0.1", port=PORT)
    assert (PORT, TLS_PORT) == (1883, 8883)


@pytest.mark.parametrize(
    ("words", "tls", "port"),
    [
        (["--tls"], True, TLS_PORT),
        (["--ca-file", "ca.pem"], True, TLS_PORT),
        (["--certificate-file", "c.pem", "--key-file", "k.pem"], True, TLS_PORT),
        (["--tls", "--port", "1883"], True, 1883),
        (["--port", "1884"], False, 1884),
        (["--username", "a", "--password-file", "p"], False, PORT),
    ],
)
def test_certificates_mean_encryption_and_its_own_port_unless_one_is_given(
    words: list[str], tls: bool, port: int
) -> None:
    config = mqtt_config(parsed(*words))
    assert (config.tls, config.port) == (tls, port)


def test_every_option_reaches_the_settings() -> None:
    given_options = {"host": "h", "port": "1", "username": "u", "password-file": "p"}
    given_options |= {"ca-file": "a", "certificate-file": "c", "key-file": "k"}
    words = [f"--{name}={value}" for name, value in given_options.items()]
    assert mqtt_config(parsed(*words)) == MqttConfig(
        host="h", port=1, username="u", password_file="p", tls=True, ca_file="a", certificate_file="c", key_file="k"
    )


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_no_port_is_quietly_taken_for_another(port: str) -> None:
    with pytest.raises(UsageError, match=f"--port {port}: must be from 1 to 65535"):
        mqtt_config(parsed("--port", port))


def test_a_password_is_never_a_word_of_the_command_line() -> None:
    """Words of a command line are read by everyone on the machine, in /proc and in the shell's history."""
    assert not any("password" in name and not name.endswith("_file") for name in vars(parsed()))
