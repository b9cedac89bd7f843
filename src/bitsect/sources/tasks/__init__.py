"""TASKS: what a network is judged by, with loss and score of every sample.

The table says where its entries are, so that reading the names loads no torch.
"""

TASKS = {
    "classification": "bitsect.sources.tasks.classification:CLASSIFICATION",
    "classification-top5": "bitsect.sources.tasks.classification:TOP5",
    "binary": "bitsect.sources.tasks.classification:BINARY",
}
