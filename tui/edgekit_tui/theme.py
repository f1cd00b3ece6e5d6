"""The console's themes. The colour-blind one uses the hues of Okabe and Ito, told apart in every common deficiency."""

from __future__ import annotations

from textual.theme import Theme

THEMES = (
    Theme(
        name="edgekit",
        primary="#4cc2ff", secondary="#7a8cff", accent="#ffb454", foreground="#d7dde8", background="#0b0f16",
        surface="#10151f", panel="#182030", success="#5fd38d", warning="#f2c14e", error="#ff6b6b", dark=True,
        variables={"faint": "#77839a", "track": "#2b3548", "p99-color": "#ffae57", "spark-color": "#9a6a4c",
                   "hush-color": "#3d7a5a", "model-color": "#b9a7ff",
                   "cursor-bg": "#1f3350", "border-color": "#2c3a52", "footer-key-foreground": "#ffb454"},
    ),
    Theme(
        name="edgekit-light",
        primary="#0b63b0", secondary="#4b4fc4", accent="#a85b00", foreground="#1d2430", background="#f7f8fa",
        surface="#ffffff", panel="#e8ecf2", success="#13733a", warning="#8a6100", error="#b3261e", dark=False,
        variables={"faint": "#5d6878", "track": "#ccd4df", "p99-color": "#b04a00", "spark-color": "#cf8a5a",
                   "hush-color": "#7fb894", "model-color": "#5b3fb5",
                   "cursor-bg": "#cfe3f7", "border-color": "#b8c3d1", "footer-key-foreground": "#a85b00"},
    ),
    Theme(
        name="edgekit-high-contrast",
        primary="#00d7ff", secondary="#8fa7ff", accent="#ffff00", foreground="#ffffff", background="#000000",
        surface="#000000", panel="#000000", success="#00ff5f", warning="#ffd700", error="#ff5f5f", dark=True,
        variables={"faint": "#c0c0c0", "track": "#6c6c6c", "p99-color": "#ffaf00", "spark-color": "#ffaf00",
                   "hush-color": "#00d787", "model-color": "#ffafff",
                   "cursor-bg": "#0000d7", "border-color": "#ffffff", "footer-key-foreground": "#ffff00"},
    ),
    Theme(
        name="edgekit-colour-blind",
        primary="#56b4e9", secondary="#0072b2", accent="#f0e442", foreground="#e4e8ee", background="#0d1117",
        surface="#11161f", panel="#1a2230", success="#56b4e9", warning="#f0e442", error="#d55e00", dark=True,
        variables={"faint": "#8590a2", "track": "#2e3846", "p99-color": "#e69f00", "spark-color": "#96690a",
                   "hush-color": "#2f6f96", "model-color": "#cc79a7",
                   "cursor-bg": "#1d3a55", "border-color": "#34425a", "footer-key-foreground": "#f0e442"},
    ),
)  # fmt: skip
