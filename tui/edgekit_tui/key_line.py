"""The line of keys at the foot of a screen, as one widget: a widget for each key cost more than the screen above it."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.screen import Screen
from textual.strip import Strip

from edgekit_tui.draw import Glyphs, Line, width_of
from edgekit_tui.ink import Inked, clip, right_align

Spot = tuple[int, int, str, bool]
"""From this cell up to that one, a key, and whether it may be pressed."""


class KeyLine(Inked):
    """Every shown key that works here, with what it does; a click presses it. The palette's stands at the right."""

    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="keys")
        self._glyphs = glyphs
        self._line: Line = ()
        self._spots: tuple[Spot, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def on_resize(self) -> None:
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        if not self.is_attached or screen is not self.screen:
            return
        line, spots = self._lay_out(self.size.width)
        if line != self._line:
            self.refresh()
        self._line, self._spots = line, spots

    def _lay_out(self, width: int) -> tuple[Line, tuple[Spot, ...]]:
        """The line and where each key stands in it; what does not fit is cut, the palette last."""
        shown: dict[str, tuple[Binding, bool]] = {}
        palette: tuple[Binding, bool] | None = None
        for key, (_, binding, enabled, _) in self.screen.active_bindings.items():
            if key == self.app.COMMAND_PALETTE_BINDING:
                palette = (binding, enabled)
            elif binding.show:
                shown.setdefault(binding.action, (binding, enabled))
        left: list[tuple[str, str]] = []
        spots: list[Spot] = []
        for binding, enabled in shown.values():
            start = width_of(tuple(left))
            left += self._label(binding, enabled)
            spots.append((start, width_of(tuple(left)) - 1, binding.key, enabled))
        right: Line = ()
        if palette is not None:
            right = ((self._glyphs.pipe, "faint"), *self._label(*palette))
            spots.append((width - width_of(right), width, palette[0].key, palette[1]))
        room = max(0, width - width_of(right) - 1)
        line = right_align(clip(tuple(left), room, self._glyphs), right, width)
        return line, tuple(spot for spot in spots if spot[0] < room or spot[2] == (palette and palette[0].key))

    def _label(self, binding: Binding, enabled: bool) -> Line:
        key, text = ("accent", "text") if enabled else ("faint", "faint")
        return ((f" {self.app.get_key_display(binding)}", key), (f" {binding.description} ", text))

    def render_line(self, y: int) -> Strip:
        return self.strip(self._line if y == 0 else (), self.size.width)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        for start, end, key, enabled in reversed(self._spots):
            if start <= event.x < end:
                self.app.simulate_key(key) if enabled else self.app.bell()
                return
