"""What a user brings: models, data, tasks, recipes."""
