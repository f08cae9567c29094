"""Eight devices with skewed digits: which way of combining their models serves them best?"""

import fedcore as fc

fed = fc.federate(fc.load("digits"), fc.dirichlet(0.5), devices=8, net=fc.mlp(64, 32))

result = fc.run(fc.code_ot(reg=0.01), fed, seed=0)
print(result.table.query("metric == 'accuracy'")[["device", "split", "value"]].head())  # a row for each number
print(result.models["device-03"].predict(fed.dataset.train.x[:10]))

# On these eight devices code_ot, one exchange, is worse than local training: 58% right against 91%.
comparison = fc.compare([fc.local_only(), fc.fedavg(rounds=10), fc.code_ot()], fed, seeds=range(3))  # about a minute
print(comparison.summary[["method", "rank", "test_mean", "test_worst", "shared_mean", "bytes_up"]])
print(comparison.answer)  # what to do, and why; here three seeds cannot say
