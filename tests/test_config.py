"""The daemon's settings: names that could be taken for more than themselves are refused."""

from __future__ import annotations

import pytest

from edgekit.config import DaemonConfig, ModelConfig, check_daemon_config
from edgekit.errors import ConfigError


@pytest.mark.parametrize("key", ["site", "device"])
@pytest.mark.parametrize("name", ["cam\n", "_all", "", "a/b", "Cam", "+", "x" * 64])
def test_a_name_that_could_be_taken_for_more_than_itself_is_refused(key: str, name: str) -> None:
    config = DaemonConfig(model=(ModelConfig(name="digits"),), **{key: name})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"edgekit.toml: {key}: .* must be 1 to 63 of a-z") as refused:
        check_daemon_config(config, "edgekit.toml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["cam-1", "a", "0_0", "x" * 63])
def test_an_ordinary_name_is_accepted(name: str) -> None:
    config = DaemonConfig(model=(ModelConfig(name="digits"),), device=name, site=name)
    assert check_daemon_config(config, "edgekit.toml") is config
