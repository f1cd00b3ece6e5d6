"""What one device is given: names, broker, password: written for a daemon to read, never a word of a command."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path

import msgspec
import pytest

from edgekit.cli.broker import secret_path
from edgekit.cli.main import main
from edgekit.cli.provision_own import own_of
from edgekit.errors import ConfigError, UsageError
from edgekit.own import load_device_config
from edgekit.provision import enrol
from edgekit.provision.enrol import Broker, broker_at, own_files, read_own

RELEASE = 'site = "release"\n[http]\nport = 8081\n[[model]]\nname = "digits"\n'


@pytest.mark.parametrize(
    ("text", "authority", "wanted"),
    [
        ("mqtt.lan", None, ("mqtt.lan", 1883)),
        ("mqtt.lan", b"pem", ("mqtt.lan", 8883)),
        ("mqtt.lan:2883", None, ("mqtt.lan", 2883)),
        ("10.0.0.1:1", b"pem", ("10.0.0.1", 1)),
        ("[fd00::1]:1883", None, ("fd00::1", 1883)),
        ("[fd00::1]", None, ("fd00::1", 1883)),
    ],
)
def test_a_brokers_address_is_read(text, authority, wanted):
    found = broker_at(text, authority=authority)
    assert (found.host, found.port) == wanted
    assert found.authority == authority


@pytest.mark.parametrize(
    "text", ["", ":1883", "mqtt.lan:0", "mqtt.lan:65536", "mqtt.lan:x", "user@mqtt", "a b", "mqtt://x/"]
)
def test_what_is_no_brokers_address_is_refused(text):
    with pytest.raises(UsageError, match="is no broker; give HOST or HOST:PORT"):
        broker_at(text)


def test_a_daemon_reads_what_was_written_over_what_its_release_says(tmp_path):
    root = tmp_path / "device"
    broker = Broker(host="mqtt.lan", port=8883, authority=b"-----BEGIN CERTIFICATE-----\n")
    given = own_files(str(root), site="lab", device="line-3", broker=broker, password=b" secret\n\n")
    assert enrol.write_own(root, given)
    (tmp_path / "edgekit.toml").write_text(RELEASE)
    config = load_device_config(tmp_path / "edgekit.toml", root / "shared/device.toml")
    assert (config.site, config.device, config.http.port) == ("lab", "line-3", 8081)
    assert (config.mqtt.host, config.mqtt.port, config.mqtt.username, config.mqtt.tls) == (
        "mqtt.lan", 8883, "lab/line-3", True,
    )  # fmt: skip
    assert Path(config.mqtt.password_file or "").read_text() == "secret\n"
    assert Path(config.mqtt.ca_file or "").read_bytes() == broker.authority


def test_the_password_is_for_its_owner_alone_and_nothing_is_written_twice(tmp_path):
    given = own_files("/x", site="lab", device="line-3", broker=Broker(host="b"), password=b"secret")
    assert not enrol.is_so(tmp_path, given)
    assert enrol.write_own(tmp_path, given)
    assert stat.S_IMODE((tmp_path / "shared/mqtt-password").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shared/device.toml").stat().st_mode) == 0o640
    before = (tmp_path / "shared/device.toml").stat().st_mtime_ns
    assert enrol.is_so(tmp_path, given)
    assert not enrol.write_own(tmp_path, given)
    assert (tmp_path / "shared/device.toml").stat().st_mtime_ns == before
    assert "secret" not in given["device.toml"].decode()


def test_the_password_is_there_before_what_names_it(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(enrol, "write_atomic", lambda path, data, mode: order.append((path.name, len(data) > 0, mode)))
    broker = Broker(host="b", authority=b"pem")
    enrol.write_own(tmp_path, own_files("/x", site="lab", device="d", broker=broker, password=b"p"))
    assert [name for name, _, _ in order][-1] == "device.toml"
    assert {name for name, _, _ in order} == {"mqtt-ca.pem", "mqtt-password", "device.toml"}


@pytest.mark.parametrize("name", ["Line 3", "a/b", "", "x" * 64, "ümlaut", 'a"b'])
@pytest.mark.parametrize("key", ["site", "device"])
def test_a_name_that_no_topic_could_carry_is_refused(key, name):
    names = {"site": "lab", "device": "d"} | {key: name}
    with pytest.raises(UsageError, match=f"--{key} "):
        own_files("/x", **names)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"site": "lab", "device": "d", "password": b"x"}, "without --broker"),
        ({"site": None, "device": "d", "password": b"x", "broker": Broker(host="b")}, "signs in as SITE/DEVICE"),
        ({"site": "lab", "device": None, "password": b"x", "broker": Broker(host="b")}, "signs in as SITE/DEVICE"),
    ],
)
def test_what_does_not_go_together_is_refused(given, problem):
    with pytest.raises(UsageError, match=problem):
        own_files("/x", **given)


def test_nothing_given_is_nothing_written():
    assert own_files("/x", site=None, device=None) == {}
    only = own_files("/x", site=None, device="d")
    assert msgspec.toml.decode(only["device.toml"]) == {"device": "d"}


def test_a_hosts_odd_characters_stay_a_text_of_toml():
    odd = own_files('/a "b"\\c', site="lab", device="d", broker=Broker(host='h"\\'), password=b"p")
    table = msgspec.toml.decode(odd["device.toml"])
    assert table["mqtt"]["host"] == 'h"\\'
    assert table["mqtt"]["password_file"] == '/a "b"\\c/shared/mqtt-password'


def test_ready_made_files_are_read_from_a_file_or_a_folder(tmp_path):
    (tmp_path / "device.toml").write_text('device = "line-3"\n')
    (tmp_path / "mqtt-password").write_text("secret\n")
    (tmp_path / "notes.txt").write_text("not for the device")
    assert set(read_own(tmp_path / "device.toml")) == {"device.toml"}
    assert set(read_own(tmp_path)) == {"device.toml", "mqtt-password"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "is missing from this folder"),
        ('devise = "x"\n', "device"),
        ("not toml [", "device.toml"),
        ("#" * (1 << 20) + "#", "no such file"),
    ],
)
def test_what_no_daemon_would_read_is_refused_before_it_is_sent(tmp_path, content, problem):
    folder = tmp_path / "own"
    folder.mkdir()
    if content is not None:
        (folder / "device.toml").write_text(content)
    with pytest.raises(ConfigError, match=problem):
        read_own(folder)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_own(tmp_path / "nothing.toml")


def asked(**flags) -> argparse.Namespace:
    names = ("site", "device", "broker", "broker_ca", "broker_dir", "mqtt_password_file", "own")
    return argparse.Namespace(**{name: flags.get(name) for name in names}, dry_run=flags.get("dry_run", False))


def test_a_password_is_made_once_in_the_brokers_folder(tmp_path, capsys):
    (tmp_path / "broker").mkdir()
    flags = {"site": "lab", "device": "line-3", "broker": "b", "broker_dir": tmp_path / "broker"}
    first = own_of(asked(**flags), "/x", lambda: None)
    assert "lab/line-3 may now sign in" in capsys.readouterr().err
    kept = secret_path(tmp_path / "broker", "lab/line-3", "device").read_bytes()
    assert first["mqtt-password"] == kept
    assert len(kept.strip()) == 40  # 160 random bits
    assert own_of(asked(**flags), "/x", lambda: None) == first
    assert capsys.readouterr().err == ""


def test_a_dry_run_makes_no_password(tmp_path, capsys):
    (tmp_path / "broker").mkdir()
    flags = {"site": "lab", "device": "d", "broker": "b", "broker_dir": tmp_path / "broker", "dry_run": True}
    assert "device.toml" in own_of(asked(**flags), "/x", lambda: None)
    assert list((tmp_path / "broker").iterdir()) == []


def test_the_hardwares_name_and_the_default_site_stand_in(tmp_path):
    (tmp_path / "secret").write_text("s\n")
    given = own_of(asked(broker="b", mqtt_password_file=tmp_path / "secret"), "/x", lambda: "rpi-00ff")
    assert msgspec.toml.decode(given["device.toml"])["mqtt"]["username"] == "default/rpi-00ff"
    with pytest.raises(UsageError, match="give it one with --device ID"):
        own_of(asked(broker="b", mqtt_password_file=tmp_path / "secret"), "/x", lambda: None)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--broker-ca", "ca.pem"], 2, "--broker-ca needs --broker HOST"),
        (["--broker-dir", "."], 2, "--broker-dir needs --broker HOST"),
        (["--broker", "b", "--broker-ca", "no-such.pem"], 3, "cannot be read"),
        (["--broker", "b", "--broker-dir", "no-such-folder"], 2, "is no folder; it is that of: edgekit broker --dir"),
        (["--own", "x.toml", "--site", "lab"], 2, "--own says it all; leave --site out"),
        (["--device", "Line 3"], 2, "must be 1 to 63 of a-z"),
        (["--broker", "b", "--mqtt-password-file", "p", "--broker-dir", "d"], 2, "not allowed with"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(tmp_path, capsys, edgekit_home, monkeypatch, words, code, problem):
    monkeypatch.chdir(tmp_path)
    try:
        found = main(["provision", f"local:{tmp_path}/device", "--model", "digits", *words])
    except SystemExit as e:  # argparse's own
        found = e.code
    assert found == code
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "device").exists()
