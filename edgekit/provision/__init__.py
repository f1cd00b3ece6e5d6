"""Ship, switch, go back: releases, their trust, two slots, the guard that starts one of them, and the health gate."""
