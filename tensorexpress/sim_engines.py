"""What a plan can be simulated by, for whoever offers the choice: the simulator itself takes long to import."""

from __future__ import annotations

#: simpy is the readable reference, fast the compiled engine; auto takes fast unless the policy needs simpy.
ENGINES = ("auto", "simpy", "fast")
