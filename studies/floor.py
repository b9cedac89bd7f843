"""About the least that a search could find: plans of least predicted damage, chosen by the test samples.

    python studies/floor.py RUN --test-data FILE --targets 99% 99.9%

RUN is the folder of a run of the method `bitsect`. Plans along its trail, bettered by exchanges, are judged
on the test samples, and for every target the cheapest that keeps it there is named. No search may look
at these samples, and of many plans some keep a target by luck: what is named is an estimate of the least
that an honest answer with the same quantiser costs.
"""

from __future__ import annotations

import argparse
from fractions import Fraction

from bitsect.pipeline.latency import table_for
from bitsect.pipeline.problem import state_problem
from bitsect.runs.opening import open_run
from bitsect.solve.allowed import allowed_formats
from bitsect.solve.costs import cost
from bitsect.solve.search.trail import Trails, thinned
from bitsect.values import Goal, Plan, Target
from bitsect.values.method import BITSECT


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--test-data", required=True)
    parser.add_argument("--targets", nargs="+", default=["99%", "99.9%"])
    parser.add_argument("--latency", default="a100", help="latency table, or none to count bits")
    parser.add_argument("--plans", type=int, default=24, help="plans of the trail that are judged")
    parser.add_argument(
        "--most", type=float, default=0.8, help="of the cost of float: dearer plans are left out"
    )
    arguments = parser.parse_args()
    latency = None if arguments.latency == "none" else arguments.latency
    goal = BITSECT.complete(Goal(target=arguments.targets[0], latency=latency))
    with open_run(arguments.run) as run:
        table, _ = table_for(run, goal)
        allowed = allowed_formats(run.layers, goal, table)
        run.calibrate(allowed.all)
        problem, _ = state_problem(run, BITSECT.scoring, goal, allowed, Fraction(0), _nobody, table)
        trails = Trails(problem)

        def share(plan: Plan) -> float:
            spent = cost(plan, run.layers, table)
            return spent.size_ratio if spent.latency_ratio is None else spent.latency_ratio

        trail = [point.plan for point in thinned(trails, trails.down(trails.rungs(problem.start)))]
        trail = [plan for plan in trail if share(plan) <= arguments.most]
        chosen = trail[:: max(1, -(-len(trail) // arguments.plans))]
        plans = [trails.plan(trails.polished(trails.rungs(plan))) for plan in (*chosen, trail[-1])]
        evaluator = run.evaluator(allowed.all, run.load(arguments.test_data))
        before = evaluator(Plan.uniform(run.layers)).accuracy
        kept = {}
        for plan in dict.fromkeys((*allowed.uniform().values(), *plans)):
            kept[plan] = evaluator(plan).accuracy / before
            print(f"{share(plan):.4f} of the cost, {kept[plan]:.2%} kept: {plan.counted}", flush=True)
        for target in map(Target.parse, arguments.targets):
            assert target.relative is not None
            keeping = [plan for plan in kept if kept[plan] >= target.relative]
            if keeping:
                best = min(keeping, key=share)
                print(f"{target}: {share(best):.4f} of the cost, {kept[best]:.2%} kept")


def _nobody(plan: Plan, threshold: Fraction | None) -> None:
    raise AssertionError("no plan is judged while a problem is stated")


if __name__ == "__main__":
    main()
