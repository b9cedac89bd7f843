"""A metric of your own: any function of what was measured.

python examples/own_metric.py
bitsect sensitivity zoo:fashion-resnet --draw 128 --metric own_metric:curvature_times_loss
"""

import bitsect


@bitsect.metric("single", "traces")
def curvature_times_loss(means: bitsect.Means, scoring: bitsect.Scoring) -> bitsect.Array:
    """The loss with that layer rounded alone, weighted by the trace of its Hessian."""
    return means["single"] * means["traces"]


if __name__ == "__main__":
    scores = bitsect.sensitivity("zoo:fashion-resnet", draw=128, metric="own_metric:curvature_times_loss")
    for name in scores.order()[-3:]:
        print(name)
