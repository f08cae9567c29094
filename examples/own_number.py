"""A number as label: the remaining hours of machines, each a device that trains on its own rows."""

import numpy as np

import fedcore as fc

rng = np.random.default_rng(0)
machine = np.arange(600) % 5
sensors = rng.normal(size=(600, 4))
hours = 400 - 60 * sensors[:, 0] + 40 * sensors[:, 1] * sensors[:, 2] + 10 * machine + rng.normal(0, 15, 600)

data = fc.from_arrays(sensors, hours, device=[f"press-{number}" for number in machine])
fed = fc.federate(data, fc.by_device(), net=fc.mlp(16))
comparison = fc.compare([fc.local_only(), fc.fedavg(training={"epochs": 2}), fc.ensemble()], fed, seeds=range(3))
print(comparison.answer)
print(comparison.summary[["method", "metric", "rank", "test_mean", "test_worst"]])

print("press-2, hours left:", comparison.results[0].models["press-2"].predict(sensors[2:4]).round(), hours[2:4].round())
