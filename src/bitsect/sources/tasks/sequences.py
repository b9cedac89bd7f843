"""A class for every token: tags of words, and the words themselves that a language model is asked for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError
from .outputs import IGNORED, OWN_TASK, named_tensors
from .task import Outcome, SampleError, Task


def token_logits(outputs: Any) -> Tensor:
    """The logits [batch, tokens, classes] of the outputs: those called so, else the only ones."""
    tensors = named_tensors(outputs)
    among = {"logits": tensors["logits"]} if "logits" in tensors else tensors
    fitting = [tensor for tensor in among.values() if tensor.ndim == 3 and tensor.is_floating_point()]
    if len(fitting) != 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in among.values())
        raise DataError(f"the network gives {shapes}, not one float [batch, tokens, classes]: {OWN_TASK}")
    return fitting[0]


def tag(outputs: Any, labels: Tensor) -> Outcome:
    """The mean cross-entropy of the tokens that are judged, and the share of them that is right."""
    logits, wanted, judged = _pair(outputs, labels)
    right = ((logits.argmax(-1) == wanted) & judged).double().sum(1)
    return Outcome(_mean_loss(logits, wanted, judged), right / judged.sum(1))


def next_token(outputs: Any, labels: Tensor) -> Outcome:
    """The mean surprise −ln p of every next token, and how much of a blind guess's surprise that takes away.

    score = 1 − (−ln p) / ln V, with V tokens to choose from: 0 for a uniform guess, 1 for certainty. So a
    target is a share of the log-likelihood gained over guessing; perplexity is exp of the mean loss.
    """
    logits = token_logits(outputs)[:, :-1]
    return _surprise(logits, *_judged(logits, labels[:, 1 : 1 + logits.shape[1]]))


def masked_token(outputs: Any, labels: Tensor) -> Outcome:
    """The same of the tokens that were masked."""
    return _surprise(*_pair(outputs, labels))


def tags(outputs: Any) -> Tensor:
    """The class of the largest logit of every token."""
    return token_logits(outputs).argmax(-1)


def token_divergence(reference: Any, outputs: Any) -> Tensor:
    """KL(reference ‖ outputs) between the classes of each token, the mean over those of a sample."""
    log_p, log_q = (token_logits(each).float().log_softmax(-1) for each in (reference, outputs))
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1).double().mean(1).clamp(min=0)


def _surprise(logits: Tensor, wanted: Tensor, judged: Tensor) -> Outcome:
    loss = _mean_loss(logits, wanted, judged)
    blind = math.log(max(2, logits.shape[-1]))
    return Outcome(loss, (1 - loss.detach().double() / blind).clamp(0, 1))


def _mean_loss(logits: Tensor, wanted: Tensor, judged: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    each = F.cross_entropy(wide.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=IGNORED)
    return each.reshape(wanted.shape).sum(1) / judged.sum(1)


def _pair(outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = token_logits(outputs)
    return (logits, *_judged(logits, labels[:, : logits.shape[1]] if labels.ndim == 2 else labels))


def _judged(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of these tokens, and which of them are judged: at least one for each sample."""
    if labels.shape != logits.shape[:2] or labels.is_floating_point():
        raise DataError(
            f"labels {labels.dtype} {tuple(labels.shape)} for logits {tuple(logits.shape)}: this task takes "
            f"a class for each token, {IGNORED} where none is judged"
        )
    judged = labels != IGNORED
    outside = (((labels < 0) | (labels >= logits.shape[-1])) & judged).any(1).nonzero().flatten()
    if len(outside):
        row = int(outside[0])
        bad = int(labels[row][judged[row]].abs().max())
        raise SampleError(row, f"has label {bad}, but the network has {logits.shape[-1]} classes")
    empty = (~judged.any(1)).nonzero().flatten()
    if len(empty):
        raise SampleError(int(empty[0]), "has no token that is judged: leave it out")
    return labels.long(), judged


TOKENS = Task("token-classification", tag, answer=tags, diverge=token_divergence)
LANGUAGE = Task("language-modelling", next_token, diverge=token_divergence, tolerance=0.005)
MASKED_LANGUAGE = Task("masked-language-modelling", masked_token, diverge=token_divergence, tolerance=0.005)
