"""The simulator: predicts what a plan does, packet by packet, with two engines that mean the same.

simulate(plan)   what happens, as a Trace
predict(scenario)  several policies side by side, with their distance to the optimum
replay(cluster, packets)  recorded traffic, open loop
"""

from __future__ import annotations

from tensorexpress.sim.predict import predict
from tensorexpress.sim.replay import replay
from tensorexpress.sim.run import simulate
from tensorexpress.sim_engines import ENGINES

__all__ = ["ENGINES", "predict", "replay", "simulate"]
