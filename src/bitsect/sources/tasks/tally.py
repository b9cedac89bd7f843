"""Outcomes of batches added up to one accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..data import Samples
from .task import Outcome, Task
from .windows import join_windows


@dataclass
class Tally:
    """What was seen of every sample so far: its score and, where it is needed, label, weight and number."""

    scores: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)

    @property
    def samples(self) -> int:
        return sum(map(len, self.scores))

    def add(self, outcome: Outcome, labels: Tensor, indices: Tensor) -> None:
        self.scores.append(outcome.score.detach().cpu())
        self.indices.append(indices)
        if outcome.weight is not None:
            self.weights.append(outcome.weight.cpu())
        self.labels.append(labels.cpu())

    def accuracy(self, task: Task, samples: Samples) -> float:
        """The score of all samples seen; of questions in windows, that of those seen to the end."""
        scores = torch.cat(self.scores)
        if samples.groups is not None:
            groups = samples.groups[torch.cat(self.indices)].numpy()
            windows = dict(enumerate(torch.bincount(samples.groups).tolist()))
            weights = torch.cat(self.weights).numpy()
            scores = torch.from_numpy(join_windows(scores.numpy(), weights, groups, windows))
        return task.score_all(scores, torch.cat(self.labels) if task.ranks else None)
