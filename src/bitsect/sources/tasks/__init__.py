"""TASKS: what a network is judged by, with loss and score of every sample.

The table says where its entries are, so that reading the names loads no torch.
"""

TASKS = {
    "classification": "bitsect.sources.tasks.classification:CLASSIFICATION",
    "classification-top5": "bitsect.sources.tasks.classification:TOP5",
    "binary": "bitsect.sources.tasks.classification:BINARY",
    "multi-label": "bitsect.sources.tasks.quantities:MULTI_LABEL",
    "token-classification": "bitsect.sources.tasks.sequences:TOKENS",
    "question-answering": "bitsect.sources.tasks.squad:QUESTION_ANSWERING",
    "question-answering-exact": "bitsect.sources.tasks.squad:EXACT",
    "language-modelling": "bitsect.sources.tasks.sequences:LANGUAGE",
    "masked-language-modelling": "bitsect.sources.tasks.sequences:MASKED_LANGUAGE",
    "regression": "bitsect.sources.tasks.quantities:REGRESSION",
    "features": "bitsect.sources.tasks.quantities:KEEP_FEATURES",
    "outputs": "bitsect.sources.tasks.whole:KEEP_OUTPUTS",
    "segmentation": "bitsect.sources.tasks.segmentation:SEGMENTATION",
}
