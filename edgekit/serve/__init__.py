"""The on-device daemon: models held warm behind HTTP, reported over MQTT."""
